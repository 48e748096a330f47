"""A notebook at a glance, what changed since the last look, and what its user reads of a call."""

from __future__ import annotations

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.document.document import (
    Cell,
    FallbackDocument,
    find,
    short_ids,
    source_hash,
)
from hermes_nb.notebook.document.outline import (
    CellChanges,
    SeenCells,
    changes,
    editing,
    headings,
    moving,
    outline,
    reading,
    section,
    several,
    telling,
)
from hypothesis import example, given
from hypothesis import strategies as st

ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
PLOT = {"output_type": "display_data", "data": {"image/png": "", "text/plain": ""}}
TABLE = {"output_type": "execute_result", "data": {"text/html": "", "text/plain": ""}}
STREAM = {"output_type": "stream", "name": "stdout", "text": ""}


def cell(index, source, kind="code", name=None, outputs=None, count=None):
    facts = {"execution_count": count, "output_count": len(outputs or ()), "outputs": outputs}
    place = {"index": index, "id": name or f"cell{index:04}", "type": kind}
    return Cell(**place, source=source, hash=source_hash(source), **facts)


def cells(*sources):
    kinds = ("markdown" if source.startswith("#") else "code" for source in sources)
    return [cell(i, *found) for i, found in enumerate(zip(sources, kinds, strict=True))]


def test_one_line_a_cell():
    shown = outline(
        [
            cell(0, "# Penguins\nsome text", "markdown"),
            cell(1, "import pandas as pd\nimport numpy\ndf", outputs=[STREAM, TABLE], count=3),
            cell(2, "## Plots", "markdown"),
            cell(3, "df.plot()", outputs=[PLOT, ERROR]),
            cell(4, "  ", "raw", name="a-very-long-identifier"),
            cell(5, "x = '\u202e\x1b[31m'\n\n\ny"),
            Cell(index=6, id="a", type="code", source="x", hash="", output_count=2),
        ]
    )
    assert shown.splitlines() == [
        "0 cell0000 markdown: # Penguins (+1 line)",
        "  1 cell0001 code [3]: import pandas as pd (+2 lines) -> table, output",
        "  2 cell0002 markdown: ## Plots",
        "    3 cell0003 code: df.plot() -> error, plot",
        "    4 a-very-l raw: (empty)",
        "    5 cell0005 code: x = '\\u202e\\x1b[31m' (+3 lines)",
        "    6 a code: x -> 2 outputs",
    ]
    assert outline([]) == "(no cells)"


def test_headings_in_code_blocks_are_none():
    text = "```python\n# not one\n```\n# One\n~~~\n# no\n~~~~\n### Three ###\n#hashtag\n    # code"
    assert headings(cell(0, text, "markdown")) == [(1, "One"), (3, "Three")]
    assert headings(cell(0, "# comment")) == []


def test_what_changed_is_marked():
    seen = SeenCells()
    before = cells("a", "b", "c")
    seen.learn("nb", before[:1])
    assert seen.changes("nb", before) == changes(before, None) == CellChanges()
    seen.record_all("nb", before)
    grown = seen.changes("nb", cells("a", "b", "c", "d"))
    assert grown.new == {"cell0003"}
    assert outline(before[:1], changed=grown) == "0 cell0000 code: a"
    after = [before[0], cell(1, "B", name=before[1].id), cell(2, "d", name="new")]
    lines = outline(after, seen=seen.hashes("nb")).splitlines()
    assert lines[0].endswith("a") and lines[1].endswith("* edited") and lines[2].endswith("* new")
    assert lines[3] == "deleted since you last looked: cell0002"
    assert not seen.knows("nb", after[1]) and seen.knows("nb", after[0])
    assert not seen.knows("other", after[0])
    seen.learn("nb", after)
    assert seen.knows("nb", after[1])
    seen.forget("nb", after[1].id)
    assert not seen.knows("nb", after[1])


def test_a_long_notebook_loses_its_middle():
    many = [cell(i, f"value = {i}") for i in range(1000)]
    lines = outline(many, limit=4_000).splitlines()
    assert sum(map(len, lines)) <= 4_000
    assert lines[0].startswith("0 ") and lines[-1].startswith("999 ")
    (note,) = [line for line in lines if line.startswith("[...")]
    head = lines.index(note)
    first, last = head, 1000 - (len(lines) - head - 1)
    assert f"{last - first} lines left out; read_cells(range='{first}-{last - 1}')" in note


def test_sections():
    found = cells("# A", "1", "## B", "2", "# C", "3", "# B b", "4")
    assert [c.index for c in section(found, "A")] == [0, 1, 2, 3]
    assert [c.index for c in section(found, "## b")] == [2, 3]
    assert [c.index for c in section(found, "b b")] == [6, 7]
    assert section(found, "nope") == [] and section(found, "#") == []


def test_finding_a_cell():
    found = [cell(0, "x", name="abcdefgh-1"), cell(1, "y", name="abcdefgh-2"), cell(2, "z")]
    assert find(found, "cell").index == 2
    assert find(found, "abcdefgh-2").index == 1
    for wanted, gist in [
        ("abcdefgh", "several cells: abcdefgh-1"), ("\u202e", "near it"), ("", "near it"),
        ("cell0003", "cell0002 [2] 'z'"), ("1", "abcdefgh-2 [1] 'y'"),
    ]:  # fmt: skip
        with pytest.raises(ToolError, match=gist.replace("[", r"\[")):
            find(found, wanted)
    with pytest.raises(ToolError, match="no cells yet"):
        find([], "x")


@given(st.lists(st.text("ab-", min_size=1, max_size=20), unique=True))
def test_short_ids_find_their_cells(names):
    found = [cell(i, "x", name=name) for i, name in enumerate(names)]
    for name, short in short_ids(names).items():
        assert name.startswith(short)
        assert len(short) >= min(8, len(name))
        assert find(found, short).id == name


lines = st.text("# `~ab\n\u202e\x1b\t", max_size=60)


@given(
    st.lists(st.tuples(lines, st.sampled_from(["code", "markdown", "raw"])), max_size=60),
    st.integers(400, 3_000),
    st.dictionaries(st.sampled_from([f"cell{i:04}" for i in range(80)]), st.just("1"), max_size=9),
)
def test_an_outline_stays_within_its_limit(sources, limit, seen):
    found = [cell(i, source, kind) for i, (source, kind) in enumerate(sources)]
    whole = outline(found, seen=seen, limit=10**9).splitlines()
    shown = outline(found, seen=seen, limit=limit)
    assert len(shown) <= limit + 120
    assert "\x1b" not in shown and "\u202e" not in shown
    kept = [line for line in shown.splitlines() if not line.startswith("[...")]
    if found:
        assert len(whole) in (len(found), len(found) + 1)
        assert [line for line in whole if line in set(kept)] == kept
        assert len(kept) == len(whole) or len("\n".join(whole)) > limit
    for name in {c.id for c in found} - set(seen) if seen else ():
        assert any(name in line and line.endswith("* new") for line in whole)


def name(cell_id):
    return f"cell {cell_id.removeprefix('id')}"


@pytest.mark.parametrize(
    ("tell", "arguments", "told"),
    [
        (reading, {}, "all cells"),
        (reading, {"outputs": False}, "all cells, without outputs"),
        (reading, {"ids": ["id1"]}, "cell 1"),
        (reading, {"ids": ["id1", "id2", "id5"]}, "cells 1, 2 and 5"),
        (reading, {"range": "3-7"}, "cells 4–8"),
        (reading, {"section": "A", "outputs": False}, "section A, without outputs"),
        (editing, {"id": "id5", "new": "x = 1"}, "cell 5: x = 1"),
        (editing, {"id": "id5", "old": "a\nb", "new": "a\nc\nd"}, "cell 5: c …"),
        (editing, {"id": "id5", "old": "a", "new": ""}, "cell 5: without a"),
        (editing, {"id": "id5", "new": ""}, "cell 5: emptied"),
        (moving, {"id": "id5", "after": "id2"}, "cell 5 below cell 2"),
        (moving, {"id": "id5"}, "cell 5 to the top"),
        (several, [f"id{i}" for i in range(20)], "cells 0, 1, 2, 3, 4 and 15 more"),
    ],
)
def test_what_a_call_is_about(tell, arguments, told):
    assert tell(arguments, name) == told


def test_code_is_told_by_what_it_does():
    for code, told in [
        ("df.shape", "df.shape"), ("import os; os.getcwd()", "import os; os.getcwd()"),
        ("import pandas as pd\nfrom a import b\n\n# mean\ndf.mean()", "df.mean() …"),
        ("%matplotlib inline\nplt.plot(x)\nplt.show()", "plt.plot(x) …"),
        ("import a\nimport b", "import a …"), ("", ""), ("x = '\u202e'", "x = '\\u202e'"),
    ]:  # fmt: skip
        assert telling(code) == told


@example({"id": "\n"})
@given(st.dictionaries(st.sampled_from(["id", "ids", "old", "new", "range", "after"]), st.text()))
def test_odd_arguments_are_told_on_one_line(arguments):
    for tell in (editing, moving, reading):
        assert "\n" not in tell(arguments, name)
        assert "\n" not in several(arguments.get("ids"), str)


async def test_below_offers_one_cell(shell):
    for source in ("x = 1", "%pwd -q"):
        shell.run_cell(source, store_history=True)
    below = FallbackDocument(shell)
    assert [c.source for c in await below.cells()] == ["x = 1", "%pwd -q"]
    assert (await below.get("in-1")).execution_count == 1
    first = await below.insert("a = 1")
    assert (first.id, first.source) == ("below", "a = 1")
    assert shell.rl_next_input == "a = 1"
    await below.insert("two\nlines", type="markdown")
    both = await below.insert("b = 2", after="in-1", index=3)
    assert shell.rl_next_input == both.source == "a = 1\n\n# two\n# lines\n\nb = 2"
    for refused in (
        below.replace("in-1", "x", seen=""), below.delete("in-1", seen=""), below.save(),
        below.move("in-1", after=None), below.set_outputs("in-1", []),
    ):  # fmt: skip
        with pytest.raises(ToolError, match="JupyterLab"):
            await refused
    with pytest.raises(ToolError, match="no cell"):
        await below.get("in-9")
    assert "offered below" in below.way
    shell.run_cell("y = 1", store_history=True)
    await below.insert("*text*", type="markdown")
    assert shell.rl_next_input == "%%markdown\n*text*"
    await below.insert("c = 3")
    assert shell.rl_next_input == "# *text*\n\nc = 3"
