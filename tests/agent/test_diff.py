"""A turn's changes as a diff, by the names that its user knows."""

from __future__ import annotations

from pathlib import Path

from hermes_nb.agent.undo import cells_diff, file_diff, shown_path
from hypothesis import given
from hypothesis import strategies as st

UUID = "0b3c5f0e-8a4e-4f0c-9b57-1f2e3d4c5b6a"


def cell(cell_id, source, **more):
    return {"id": cell_id, "type": "code", "source": source, "outputs": [], **more}


def test_a_cell_is_named_by_its_place_then_and_now():
    text = cells_diff("n.ipynb", [cell("a", "x"), cell(UUID, "y")], [cell(UUID, "z")])
    assert "--- n.ipynb cell 0 a\n+++ /dev/null\n@@ -1 +0,0 @@\n-x" in text
    assert "--- n.ipynb cell 1 0b3c5f0e\n+++ n.ipynb cell 0 0b3c5f0e\n@@ -1 +1 @@\n-y\n+z" in text


def test_new_outputs_and_moves_are_told():
    before = [cell("a", "x"), cell("b", "y")]
    after = [cell("b", "y"), cell("a", "x", outputs=[{"output_type": "stream"}])]
    told = "n.ipynb cell 1 a: new outputs\nn.ipynb: cells were moved"
    assert cells_diff("n.ipynb", before, after) == told


def test_an_empty_cell_that_was_added_is_named():
    assert cells_diff("n", [], [cell("a", "")]) == "--- /dev/null\n+++ n cell 0 a"


@given(st.text("ab\n", max_size=8), st.text("ab\n", max_size=8))
def test_a_cells_diff_is_empty_only_for_what_is_the_same(old, new):
    text = cells_diff("n", [cell("a", old)], [cell("a", new)])
    assert bool(text) == (old != new)
    assert "No newline" not in text


def test_files_still_say_how_they_end():
    assert file_diff("a", b"x", b"y\n").endswith("-x\n\\ No newline at end of file\n+y")


def test_paths_are_shown_from_the_folder_one_is_in(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert shown_path(str(folder / "a" / "n.ipynb"), link) == "a/n.ipynb"
    assert shown_path(str(link / "n.ipynb"), folder) == "n.ipynb"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shown_path(str(link / "n.ipynb"), Path("/elsewhere")) == "~/folder/n.ipynb"
    assert shown_path("/opt/data.csv", folder) == "/opt/data.csv"
