"""A full disk: the notebook stays as it was, the model is told, and room is all it takes."""

from __future__ import annotations

from hermes_nb.core.files import TEMPORARY

from tests.faults.notebooks import refused, tools_on, use, valid, written

DISK = "160k"


def test_the_old_file_is_intact_and_an_edit_works_once_there_is_room(shell, small_disk):
    path = written(small_disk / "n.ipynb", "a = 1")
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 130_000)
    before = path.read_bytes()
    tools = tools_on(shell, path, keep=small_disk / "keep")
    source = "y" * 40_000
    assert "the disk is full" in refused(tools, "insert_cell", source=source)
    assert path.read_bytes() == before
    assert not [each for each in small_disk.rglob("*") if each.name.endswith(TEMPORARY)]
    assert "a = 1" in use(tools, "read_cells")
    filler.unlink()
    assert "inserted" in use(tools, "insert_cell", source=source)
    assert len(valid(path)["cells"]) == 2
