"""A full disk: a skill is as it was, no folder is left empty, and the model reads why."""

from __future__ import annotations

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import TEMPORARY
from hermes_nb.skills.document import problems
from hermes_nb.skills.library import Library
from hermes_nb.tools.stores import skills

from tests.faults.stores import fill
from tests.tools.support import run

DISK = "128k"


def skill(name, size=0):
    return f"---\nname: {name}\ndescription: About {name}.\n---\n# How\n" + "step\n" * (size // 5)


def tree(root):
    """Return what lies among the skills, folders too, without the state beside them."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in root.rglob("*")
        if ".hermes_nb" not in path.parts
    }


def test_13_disk_full_skill(small_disk):
    root = small_disk / "skills"
    library = Library([root])
    manage = skills(library).get("skill_manage")
    run(manage, action="create", name="draw", content=skill("draw"), category="data")
    before = tree(root)
    large = "y" * 150_000
    for action, name, details in (
        ("create", "mail", {"content": skill("mail", 99_000), "category": "new"}),
        ("create", "post", {"content": skill("post", 99_000), "category": "new"}),
        ("patch", "draw", {"old_string": "How", "new_string": "x" * 95_000}),
        ("patch", "draw", {"old_string": "How", "new_string": "z" * 95_000}),
        ("write_file", "draw", {"file_path": "assets/a", "file_content": large}),
    ):
        outcome = library.manage(action, name, **details)
        if outcome.applied:
            before = tree(root)
        assert outcome.applied or "the disk is full" in outcome.message
        assert tree(root) == before
        assert not [path for path in root.rglob("*") if path.name.endswith(TEMPORARY)]
        for each in library.list():
            content = each.file.read_text(encoding="utf-8")
            assert problems(content, name=each.name) == []
    with pytest.raises(ToolError, match="the disk is full"):
        run(manage, action="write_file", name="draw", file_path="assets/a", file_content=large)
    assert library.skipped() == []


def test_13_a_disk_without_any_room(small_disk):
    root = small_disk / "skills"
    library = Library([root])
    assert library.manage("create", "draw", content=skill("draw"), category="data")
    before = tree(root)
    fill(small_disk / "filler")
    for action, details in (
        ("create", {"content": skill("draw-2"), "category": "new"}),
        ("patch", {"old_string": "How", "new_string": "Why"}),
        ("write_file", {"file_path": "references/a.md", "file_content": "x"}),
        ("delete", {}),
    ):
        outcome = library.manage(action, "draw-2" if action == "create" else "draw", **details)
        assert "the disk is full" in outcome.message, (action, outcome.message)
        assert tree(root) == before
    assert "How" in library.view("draw").text
    assert "- draw:" in library.index()
    (small_disk / "filler").unlink()
    assert library.manage("patch", "draw", old_string="How", new_string="Why")
    assert library.manage("undo", "draw")
    assert tree(root) == before
