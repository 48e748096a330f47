"""A closed notebook's file: read without harm, edited whole or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import nbformat
import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import locked
from hermes_nb.notebook.document import file, json_scanner
from hermes_nb.notebook.document.document import CellConflict, source_hash
from hermes_nb.notebook.document.file import FileDocument
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
STREAM = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}
PLOT = {
    "output_type": "display_data",
    "metadata": {},
    "data": {"image/png": "iVBORw0KGgo=", "text/plain": ["<Figure>"]},
}
ERROR = {"output_type": "error", "ename": "KeyError", "evalue": "'a'", "traceback": ["x", "y"]}


def code(source, name, outputs=(), count=None):
    return {
        "cell_type": "code",
        "execution_count": count,
        "id": name,
        "metadata": {},
        "outputs": list(outputs),
        "source": source.splitlines(keepends=True),
    }


def text(source, name):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": [source]}


def notebook(*cells, minor=5):
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": minor}


def written(path, document, indent=1):
    path.write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def path(tmp_path):
    cells = (text("# Title", "title"), code("a = 1\na", "first", [STREAM, PLOT], 3))
    return written(tmp_path / "nb.ipynb", notebook(*cells, code("b", "second", [ERROR])))


def do(awaitable):
    return asyncio.run(awaitable)


def refused(awaitable):
    with pytest.raises(ToolError) as error:
        do(awaitable)
    return str(error.value)


def valid(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = json.loads(path.read_text(encoding="utf-8"))
        nbformat.validate(document)
        nbformat.read(path, as_version=4)
    return document


# reading


def test_cells(path):
    title, first, second = do(FileDocument(path).cells())
    assert (title.type, title.id, title.source, title.index) == ("markdown", "title", "# Title", 0)
    assert (first.source, first.execution_count, first.output_count) == ("a = 1\na", 3, 2)
    assert first.hash == source_hash("a = 1\na")
    assert first.outputs is None
    assert second.output_count == 1
    assert FileDocument(path).way == "the file nb.ipynb"
    whole = do(FileDocument(path).cells(outputs=True))
    assert [cell.outputs for cell in whole] == [[], [STREAM, PLOT], [ERROR]]
    assert do(FileDocument(path).get("second")).outputs == [ERROR]
    brief = do(FileDocument(path).sketch())
    assert brief[1].outputs[1]["data"] == {"image/png": "", "text/plain": ""}
    assert brief[2].outputs[0]["ename"] == "KeyError"
    assert "'a = 1" in refused(FileDocument(path).get("frist"))


@pytest.mark.parametrize(
    ("data", "gist"),
    [
        (b"", "line 1 "), (b"{", "the file ends"), (b"not json", "begins with {"),
        (b"[]", "begins with {"), (b"{}", "no nbformat number"),
        (b'{"nbformat": 4}', "no list of cells"),
        (b'{"nbformat": 9, "cells": []}', "newest supported version"),
        (b'{"nbformat": 4, "cells": [1]}', "an object expected"),
        (b'{"nbformat": 4, "cells": [{"source": 1}]}', "cell 0 of"),
        (b'{"nbformat": 4, "cells": []} x', "the end of the file expected"),
        (b'{\n"nbformat": 4,\n"cells": [{"source": \xff}]}', "line 3 "),
        (b'{\n"nbformat": 4,\n"cells": [{"source": "\xff"}]}', "not UTF-8"),
        (b'{"nbformat": 2, "worksheets": 7}', "cannot be converted"),
        (b'{"cells": [{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "nested too deeply"),
    ],
)  # fmt: skip
def test_damage_is_named_and_left_alone(tmp_path, data, gist):
    path = tmp_path / "bad.ipynb"
    path.write_bytes(data)
    document = FileDocument(path)
    assert gist in refused(document.cells())
    assert gist in refused(document.insert("x"))
    assert path.read_bytes() == data


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    assert "a pipe" in refused(FileDocument(tmp_path / "pipe.ipynb").cells())
    (tmp_path / "d.ipynb").mkdir()
    assert "a directory" in refused(FileDocument(tmp_path / "d.ipynb").insert("x"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.lists(json_values), st.booleans(), st.integers(1, 9))
def test_any_outputs_are_found_again(tmp_path_factory, values, ascii_only, piece):
    path = tmp_path_factory.mktemp("any") / "n.ipynb"
    outputs = [{"output_type": "display_data", "data": {"a": v}, "metadata": {}} for v in values]
    data = json.dumps(notebook(code("x", "x", outputs)), ensure_ascii=ascii_only, indent=2)
    path.write_bytes(data.encode("utf-8", "surrogatepass"))
    whole, json_scanner.PIECE = json_scanner.PIECE, piece
    try:
        assert do(FileDocument(path).get("x")).outputs == outputs
        assert do(FileDocument(path).cells())[0].output_count == len(values)
    finally:
        json_scanner.PIECE = whole


# old formats and ids

OLD = json.loads(Path(__file__).with_name("nbformat3.json").read_text(encoding="utf-8"))


def test_nbformat_3_is_read_through_a_copy_and_becomes_4_with_an_edit(tmp_path):
    path = written(tmp_path / "old.ipynb", OLD)
    before = path.read_bytes()
    document = FileDocument(path)
    first = do(document.cells())
    assert [(c.type, c.source, c.execution_count) for c in first] == [
        ("markdown", "## Old", None), ("code", "1+1\n2", 4),
    ]  # fmt: skip
    assert first == do(document.cells())
    shown = do(document.get(first[1].id)).outputs
    assert [o["output_type"] for o in shown] == ["execute_result", "display_data", "error"]
    assert "image/png" in do(document.sketch())[1].outputs[1]["data"]
    assert path.read_bytes() == before
    after = do(document.replace(first[1].id, "3", seen=first[1].hash))
    assert after.id == first[1].id
    kept = valid(path)
    assert [c["id"] for c in kept["cells"]] == [c.id for c in do(document.cells())]
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert kept["cells"][1]["outputs"][1]["data"]["application/json"] == {"a": 1}


# editing


@pytest.mark.parametrize("indent", [None, 1, 2, "\t"])
def test_an_edit_changes_nothing_else(path, indent):
    written(path, json.loads(path.read_text(encoding="utf-8")), indent)
    before = path.read_text(encoding="utf-8")
    do(FileDocument(path).replace("first", "a = 2\na", seen=source_hash("a = 1\na")))
    assert path.read_text(encoding="utf-8") == before.replace("a = 1", "a = 2")


def test_where_new_cells_go(path):
    document = FileDocument(path)
    new = do(document.insert("x", after="title", metadata={"hermes": {"turn": 1}}))
    assert new.index == 1 and new.metadata == {"hermes": {"turn": 1}}
    assert do(document.insert("y", type="markdown")).index == 4
    assert do(document.move("second", after="second")).index == 3
    for edit in (document.insert("x", after="nope"), document.move("first", after="nope")):
        assert "no cell 'nope'" in refused(edit)
    assert [cell["cell_type"] for cell in valid(path)["cells"]][-1] == "markdown"


def test_set_outputs(path):
    document = FileDocument(path)
    shown = [{"output_type": "stream", "name": "stdout", "text": "one\ntwo\n"}]
    cell = do(document.set_outputs("first", shown, execution_count=None))
    assert cell.output_count == 1 and cell.execution_count is None
    assert valid(path)["cells"][1]["outputs"][0]["text"] == ["one\n", "two\n"]
    assert "no outputs" in refused(document.set_outputs("title", shown))
    before = path.read_bytes()
    assert "not outputs" in refused(document.set_outputs("first", [{"output_type": "no"}]))
    assert "not outputs" in refused(document.set_outputs("first", [{"x": {1}}]))
    assert path.read_bytes() == before


def test_conflicts_show_what_is_there(path):
    document = FileDocument(path)
    before = path.read_bytes()
    for edit in (document.replace("first", "x", seen="0"), document.delete("first", seen="0")):
        with pytest.raises(CellConflict, match="a = 1\na"):
            do(edit)
    assert path.read_bytes() == before


def test_odd_numbers_and_characters_survive_and_a_byte_order_mark_is_no_damage(tmp_path):
    raw = (
        '{"cells": [{"cell_type": "code", "id": "a", "execution_count": null, "metadata": {},\n'
        '"outputs": [{"output_type": "display_data", "metadata": {"x": NaN, "y": -Infinity},\n'
        '"data": {"text/plain": "\\ud800 \\u0000 1e999"}}], "source": "s \\udfff é \U0001f600"}],\n'
        '"metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    )
    path = tmp_path / "odd.ipynb"
    path.write_text(raw, encoding="utf-8-sig")
    document = FileDocument(path)
    cell = do(document.get("a"))
    assert cell.source == "s \udfff é \U0001f600"
    do(document.insert("lone \ud83d"))
    after = path.read_text(encoding="utf-8")
    assert '{"x": NaN, "y": -Infinity}' in after and '"\\ud800 \\u0000 1e999"' in after
    assert [c.source for c in do(document.cells())] == [cell.source, "lone \ud83d"]


def test_a_notebook_that_was_invalid_before_can_be_edited(tmp_path):
    cell = {**code("a", "no id!", [{"output_type": "stream", "text": "no name"}]), "extra": 1}
    path = written(tmp_path / "n.ipynb", notebook(cell))
    (found,) = do(FileDocument(path).cells())
    do(FileDocument(path).replace(found.id, "b", seen=source_hash("a")))
    kept = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    assert (kept["source"], kept["id"]) == (["b"], found.id) and found.id.isalnum()


def test_the_previous_version_is_kept_out_of_the_way(path, tmp_path):
    before = path.read_bytes()
    keep = tmp_path / "home" / "checkpoints"
    (link := tmp_path / "link").symlink_to(path)
    do(FileDocument(link, keep=keep).insert("x"))
    assert {each.name for each in tmp_path.iterdir() if each.is_file()} == {"nb.ipynb", "link"}
    assert link.is_symlink()
    (previous,) = keep.glob("*.ipynb")
    assert previous.read_bytes() == before
    assert stat.S_IMODE(previous.stat().st_mode) == 0o600
    assert stat.S_IMODE(keep.stat().st_mode) == 0o700
    (tmp_path / "file").write_text("", encoding="utf-8")  # where no directory can be made
    do(FileDocument(path, keep=tmp_path / "file" / "checkpoints").insert("x"))
    assert len(valid(path)["cells"]) == 5


def test_a_lock_of_another_process_is_waited_for(path, tmp_path, monkeypatch):
    monkeypatch.setattr("hermes_nb.notebook.document.file.LOCK_SECONDS", 0.1)
    with locked(path):
        assert "locked by another process" in refused(FileDocument(path).insert("x"))
    do(FileDocument(path).insert("x"))


def test_what_does_not_know_the_lock_is_noticed(path, monkeypatch):
    def slow(notebook, data):
        path.write_bytes(theirs)
        return is_valid(notebook, data)

    is_valid = file.is_valid
    theirs = path.read_bytes().replace(b"a = 1", b"a = 9")
    monkeypatch.setattr(file, "is_valid", slow)
    assert "changed by something else; try again" in refused(FileDocument(path).insert("x"))
    assert path.read_bytes() == theirs


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("mode", [0o444, 0o644])
def test_no_permission_is_said(open_path, path, mode):
    path = path.rename(open_path / path.name)
    spare = path.with_name("spare.ipynb")
    spare.write_bytes(path.read_bytes())
    path.chmod(mode)
    path.parent.chmod(0o777 if mode == 0o444 else 0o755)
    before = path.read_bytes()
    script = f"""
import asyncio, os, sys
from pathlib import Path
sys.modules["rfc3987_syntax"] = None  # as in conftest.py
from hermes_nb.notebook.document.file import FileDocument
document = FileDocument(Path({str(path)!r}))
asyncio.run(FileDocument(Path({str(spare)!r})).insert("x"))  # imports what nobody may not read
os.setuid(65534)
assert len(asyncio.run(document.cells())) == 3
try:
    asyncio.run(document.insert("x"))
except Exception as error:
    print(type(error).__name__, error)
"""
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert out.stdout.startswith("ToolError 'nb.ipynb' is write-protected"), out
    assert path.read_bytes() == before


# properties

edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "delete", "move", "outputs"]),
        st.integers(0, 20),
        st.integers(0, 20),
        st.text(max_size=12),
    ),
    max_size=8,
)


@given(edits)
def test_edits_are_those_of_a_plain_list(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("list") / "n.ipynb"
    written(path, notebook(code("a", "a", [STREAM]), text("b", "b")))
    document = FileDocument(path)
    model = [["a", "a", "code", 1], ["b", "b", "markdown", 0]]
    for kind, one, two, source in steps:
        if kind == "insert":
            where = one % (len(model) + 1)
            after = model[where - 1][0] if where else None
            spot = {"after": after} if after else {"index": 0}
            new = do(document.insert(source, **spot))
            model.insert(where, [new.id, source, "code", 0])
        elif not model:
            continue
        else:
            entry = model[one % len(model)]
            if kind == "replace":
                do(document.replace(entry[0], source, seen=source_hash(entry[1])))
                entry[1] = source
            elif kind == "delete":
                do(document.delete(entry[0], seen=source_hash(entry[1])))
                model.remove(entry)
            elif kind == "outputs" and entry[2] == "code":
                shown = [{"output_type": "stream", "name": "stdout", "text": source}]
                do(document.set_outputs(entry[0], shown))
                entry[3] = 1
            elif kind == "move":
                rest = [each for each in model if each is not entry]
                where = two % (len(rest) + 1)
                do(document.move(entry[0], after=rest[where - 1][0] if where else None))
                rest.insert(where, entry)
                model = rest
        valid(path)
        cells = do(document.cells())
        assert [[c.id, c.source, c.type, c.output_count] for c in cells] == model
        assert [c.index for c in cells] == list(range(len(model)))
