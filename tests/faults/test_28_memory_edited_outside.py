"""MEMORY.md edited while a session runs: noticed, merged, copied, and said."""

from __future__ import annotations

from hermes_nb.memory.curated import CuratedMemory

from tests.memory.hermes_format import read_memory


def test_28_memory_edited_outside(home):
    memory = CuratedMemory(home)
    assert memory.apply("memory", [{"action": "add", "content": "uses vim"}])
    prompt = memory.snapshot()
    path = home / "memories/MEMORY.md"
    edited = "uses emacs now\n§\nlikes tea\n\n## by hand\n"
    path.write_text(edited, encoding="utf-8")
    assert "uses vim" in prompt.memory  # a session's snapshot is a value

    stale = memory.apply("memory", [{"action": "remove", "old_text": "uses vim"}])
    assert not stale.applied and "uses emacs now" in stale.message
    assert path.read_text(encoding="utf-8") == edited

    outcome = memory.apply("memory", [{"action": "add", "content": "new"}])
    assert outcome.applied and "edited by somebody else" in outcome.message
    kept = ["uses emacs now", "likes tea\n\n## by hand", "new"]
    assert read_memory(home, "memory") == kept == memory.entries("memory")
    (copy,) = path.parent.glob("MEMORY.md.bak.*")
    assert copy.read_text(encoding="utf-8") == edited
    again = memory.apply("memory", [{"action": "add", "content": "newer"}])
    assert again.applied and "somebody else" not in again.message


def test_28_a_deleted_file_is_an_edit_too(home):
    memory = CuratedMemory(home)
    memory.apply("memory", [{"action": "add", "content": "one"}])
    memory.apply("memory", [{"action": "add", "content": "two"}])
    (home / "memories/MEMORY.md").unlink()
    assert memory.apply("memory", [{"action": "add", "content": "three"}])
    assert read_memory(home, "memory") == ["three"]
