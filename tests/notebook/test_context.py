"""The block that goes into the user's message: its form, its limit, and the last error in it."""

from __future__ import annotations

import sys

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import Variable
from hermes_nb.notebook.failed_cell import FailedCell, last_error
from hermes_nb.notebook.user_message import turn_context, variable_line
from hypothesis import given
from hypothesis import strategies as st

TABLE = Variable(
    name="df", type="pandas DataFrame", shape="3 x 2", columns={"a": "int64", "b": "object"}
)
LINE = "- df: pandas DataFrame 3 x 2 (a int64, b object)"
ERROR = FailedCell(
    ename="KeyError", evalue="'x'", lines=("Cell In[3], line 1: d['x']",), cell_id="ab12"
)


def test_the_whole_block():
    text = turn_context(
        notebook="/work/a.ipynb",
        cells="Cells above this one (c3):\n0 c1 code [1] import pandas\n1 c2 code [2] df = ...",
        variables=[TABLE, Variable(name="n", type="int")],
        gone=["old", "older"],
        error=ERROR,
    )
    assert text.splitlines() == [
        *("[Notebook context]", "Notebook: /work/a.ipynb", "Variables:", LINE, "- n: int"),
        *("deleted: old, older", "The last cell failed (cell ab12):", "KeyError: 'x'"),
        *("Cell In[3], line 1: d['x']", "Cells above this one (c3):"),
        *("0 c1 code [1] import pandas", "1 c2 code [2] df = ..."),
    ]


def test_no_news_is_no_block():
    assert turn_context() == ""
    assert turn_context(notebook="a.ipynb") == "[Notebook context]\nNotebook: a.ipynb"


def test_many_variables_are_counted():
    variables = [Variable(name=f"v{n}", type="int") for n in range(45)]
    text = turn_context(variables=variables)
    assert text.count("\n- ") == 30
    assert "… and 15 more; list_variables" in text


names = st.text(min_size=1, max_size=30)
variables = st.builds(
    Variable,
    name=names,
    type=names,
    shape=st.text(max_size=200),
    columns=st.none() | st.dictionaries(names, names, max_size=30),
)
errors = st.builds(
    FailedCell, ename=names, evalue=st.text(max_size=2000), lines=st.tuples(names, names)
)


@given(
    notebook=st.text(max_size=400),
    cells=st.text(max_size=50),
    variables=st.lists(variables, max_size=40),
    gone=st.lists(names, max_size=40),
    error=st.none() | errors,
    limit=st.integers(100, 3000),
)
def test_it_keeps_its_limit_and_only_variables_look_like_variables(**given):
    text = turn_context(**given)
    assert len(text) <= given["limit"]
    lines = text.split("\n")
    assert not text or lines[0] == "[Notebook context]"
    items = [line for line in lines if line.startswith("- ")]
    assert set(items) <= {variable_line(variable) for variable in given["variables"]}
    if items:
        assert lines[lines.index(items[0]) - 1] == "Variables:"


def fail(shell, code, **options):
    result = shell.run_cell(code, store_history=True, **options)
    assert not result.success


def test_the_failing_lines_of_the_users_own_code(shell, capsys):
    fail(shell, "import json\ndef f(x):\n    return json.loads(x)\n\nf('{')", cell_id="ab12")
    error = last_error(shell)
    assert error.ename == "JSONDecodeError"
    assert error.cell_id == "ab12"
    assert error.source.startswith("import json")
    assert error.lines[0] == "Cell In[1], line 5: f('{')"
    assert error.lines[1] == "Cell In[1], line 3, in f: return json.loads(x)"
    assert len(error.lines) == 3
    assert (
        error.lines[2].startswith(("python3", "lib/", "json/"))
        or "json/decoder.py" in error.lines[2]
    )
    shell.run_cell("1")
    assert last_error(shell) is None
    assert last_error(shell, earlier=True).ename == "JSONDecodeError"
    assert last_error(shell, earlier=True).source.startswith("import json")


def test_a_syntax_error_names_its_line(shell, capsys):
    fail(shell, "x = 1\ny = = 2")
    error = last_error(shell)
    assert error.ename == "SyntaxError"
    assert error.lines == ("line 2: y = = 2",)
    shell.run_cell("1")
    assert last_error(shell, earlier=True).ename == "SyntaxError"


def test_a_deep_recursion_and_a_cause_stay_short(shell, capsys):
    shell.InteractiveTB.set_mode("Minimal")  # IPython takes half a minute to show a thousand frames
    fail(shell, "def f(): f()\nf()")
    assert len(last_error(shell).lines) <= 5
    fail(shell, "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('no') from e")
    assert last_error(shell).lines[-1] == "caused by KeyError: 'k'"


def test_secrets_and_hostile_texts_in_errors(shell, capsys):
    fail(shell, "raise ValueError('token sk-' + 'a1' * 20)")
    assert "a1a1" not in str(last_error(shell))
    fail(shell, "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E")
    assert "cannot be shown" in last_error(shell).evalue
    fail(shell, "raise ValueError('x' * 100_000)")
    assert len(last_error(shell).evalue) < 1200


@pytest.mark.filterwarnings("ignore:To exit")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigError("ours"), SystemExit(0)])
def test_a_stop_and_an_error_of_ours_are_no_failure(shell, capsys, error):
    shell.user_ns["error"] = error
    fail(shell, "raise error")
    assert last_error(shell, earlier=True) is None


def test_an_error_of_the_process_is_not_the_users(shell, monkeypatch):
    try:
        int("x")
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert last_error(shell, earlier=True) is None
