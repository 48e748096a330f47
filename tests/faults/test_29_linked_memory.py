"""Memory files that are links: inside the home they are followed, out of it never."""

from __future__ import annotations

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.tools.stores import memory_tools

from tests.tools.support import run


@pytest.fixture
def outside(tmp_path):
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "MEMORY.md").write_text("the secret of somebody else", encoding="utf-8")
    return directory


@pytest.mark.parametrize("linked", ["file", "directory", "lock", "journal", "nowhere"])
def test_29_linked_memory(home, outside, linked):
    memories = home / "memories"
    home.mkdir()
    if linked == "directory":
        memories.symlink_to(outside)
    else:
        memories.mkdir()
        name, target = {
            "file": ("MEMORY.md", outside / "MEMORY.md"),
            "lock": ("MEMORY.md.lock", outside / "new"),
            "journal": (".hermes_nb", outside),
            "nowhere": ("MEMORY.md", outside / "new"),
        }[linked]
        (memories / name).symlink_to(target)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    memory = CuratedMemory(home)
    assert "secret" not in str(memory.snapshot())
    assert memory.entries("memory") == []
    with pytest.raises(ToolError, match="leads out of the home directory"):
        run(memory_tools(memory).get("memory"), action="add", content="likes tea")
    assert {path: path.read_bytes() for path in outside.iterdir()} == before
    if linked in ("file", "directory"):
        assert "leads out" in memory.snapshot().notes[0]


def test_29_a_linked_home_and_a_link_inside_are_fine(tmp_path):
    real = tmp_path / "real"
    (real / "memories").mkdir(parents=True)
    (real / "dotfiles").mkdir()
    (real / "dotfiles/notes.md").write_text("uses vim", encoding="utf-8")
    (real / "memories/MEMORY.md").symlink_to(real / "dotfiles/notes.md")
    home = tmp_path / "home"
    home.symlink_to(real)
    memory = CuratedMemory(home)
    assert memory.apply("memory", [{"action": "add", "content": "likes tea"}])
    assert (real / "dotfiles/notes.md").read_text(encoding="utf-8") == "uses vim\n§\nlikes tea"
    assert (real / "memories/MEMORY.md").is_symlink()
