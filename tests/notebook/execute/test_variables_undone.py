"""Undo restores the variables that a turn changed: prompts and commands as they are typed."""

from __future__ import annotations

import pytest
from hermes_nb.models.scripted import call
from IPython.utils.capture import capture_output

pytestmark = pytest.mark.usefixtures("signals")


@pytest.fixture
def play(desk):
    """Return a function that runs user code, then a turn that runs more, for each pair."""

    def play(*turns):
        steps = []
        for _, code in turns:
            codes = [code] if isinstance(code, str) else code
            steps += [call("run_python", code=each) for each in codes] + ["Done."]
        desk.plays(*steps)
        for own, _ in turns:
            desk.shell.ex(own)
            desk.ask("go", approve="all")
        return desk

    return play


def test_undo_restores_variables_in_place(play):
    desk = play(
        (
            "import pandas as pd\n"
            "df = pd.DataFrame({'a': [1, 2]})\nxs = [1, {'k': []}]\nalias = xs[1]\ngone = 5",
            "df['b'] = 3\nxs[1]['k'].append(1)\nxs.append(2)\nnew = 1\ndel gone",
        )
    )
    names = desk.shell.user_ns
    df, xs, alias = names["df"], names["xs"], names["alias"]
    assert list(df) == ["a", "b"]
    shown = desk("undo")
    assert list(df) == ["a"]
    assert names["df"] is df
    assert xs == [1, {"k": []}]
    assert xs is names["xs"]
    assert xs[1] is alias
    assert names["gone"] == 5
    assert "new" not in names
    for line in ("`df` restored", "`xs` restored", "`new` removed", "`gone` brought back"):
        assert line in shown
    assert "Variables keep" not in shown


def test_redo_restores_what_undo_changed_in_the_same_objects(play):
    desk = play(
        (
            "import numpy as np\nimport os\nimport pandas as pd\n"
            "df = pd.DataFrame({'a': [1, 2]})\nxs = [1, {'k': []}]\ngone = 5\n"
            "array = np.zeros(3)\nview = array[:2]\nmine = [1]",
            "df.loc[0, 'a'] = 7\ndf['b'] = 3\nxs[1]['k'].append(1)\nxs.append(2)\nnew = [xs]\n"
            "del gone\narray[0] = 9\nos.environ['REDONE'] = '1'\nmine.append(2)",
        )
    )
    names = desk.shell.user_ns
    df, xs, view, new = (names[name] for name in ("df", "xs", "view", "new"))
    for _ in range(2):
        desk("undo")
        assert (list(df), xs, list(view), names["gone"]) == (["a"], [1, {"k": []}], [0, 0], 5)
        assert "new" not in names
        assert desk.shell.ev("'REDONE' not in os.environ")
        shown = desk("redo")
        assert df.to_dict("list") == {"a": [7, 2], "b": [3, 3]}
        assert (xs, list(view)) == ([1, {"k": [1]}, 2], [9, 0])
        assert names["new"] is new and new[0] is xs and names["df"] is df
        assert "gone" not in names
        assert desk.shell.ev("os.environ.pop('REDONE') and os.environ.setdefault('REDONE', '1')")
        assert "is redone:" in shown and "`new` brought back" in shown
    desk("undo")
    desk.shell.ex("mine.append('mine')\nxs.append('mine')")
    shown = desk("redo")
    assert names["mine"] == [1, "mine"]
    assert all(f"`{name}` changed since and not restored" in shown for name in ("xs", "mine"))
    desk("redo --force")
    assert names["mine"] == [1, 2]


def test_a_variable_changed_since_is_a_conflict_until_it_is_forced(play):
    desk = play(("xs = [1]\nys = [1]\nn = 1", "xs.append(2)\nys.append(2)\nn = 2\nnew = []"))
    names = desk.shell.user_ns
    desk.shell.ex("xs.append('mine')\nn = 'mine'\nnew.append('mine')")
    shown = desk("undo")
    assert names["xs"] == [1, 2, "mine"]
    assert names["n"] == "mine"
    assert names["new"] == ["mine"]
    assert names["ys"] == [1]
    assert all(f"`{name}` changed since and not restored" in shown for name in ("xs", "n", "new"))
    desk("undo --force")
    assert (names["xs"], names["n"], "new" in names) == ([1], 1, False)


def test_a_turn_that_ran_twice_is_undone_to_its_start(play):
    desk = play(
        (
            "xs = []\nn = 0",
            ["xs.append(1)\nn += 1", "xs.append(2)\nn += 1\nnew = []", "new.append(1)"],
        )
    )
    names = desk.shell.user_ns
    desk("undo")
    assert (names["xs"], names["n"], "new" in names) == ([], 0, False)


def test_undo_to_a_turn_and_of_cells_alone(play):
    desk = play(("xs = []", "xs.append(1)"), ("", "xs.append(2)"), ("", "xs.append(3)"))
    names = desk.shell.user_ns
    assert "Variables keep their current values." in desk("undo 3 --keep-variables")
    assert names["xs"] == [1, 2, 3]
    assert "Variables" not in desk("undo --to 1")
    assert names["xs"] == [1, 2, 3]  # turn 3 has changed it since
    desk("undo --to 1 --force")
    assert names["xs"] == [1]


def test_undo_to_a_turn_takes_each_later_one_back(play):
    desk = play(("xs = []", "xs.append(1)"), ("", "xs.append(2)"), ("", "xs.append(3)"))
    desk("undo --to 1")
    assert desk.shell.user_ns["xs"] == [1]


def test_code_that_fails_half_way_is_undone(play):
    desk = play(("xs = []", "xs.append(1)\nn = 1\n1 / 0"))
    desk("undo")
    assert desk.shell.user_ns["xs"] == []
    assert "n" not in desk.shell.user_ns


def test_random_state_environment_and_options_are_restored(play, monkeypatch):
    import os
    import random
    from pathlib import Path

    import pandas as pd

    monkeypatch.setenv("OWN", "1")
    rows, here = pd.get_option("display.max_rows"), Path.cwd()
    desk = play(
        (
            "import os, random, pandas as pd",
            "random.seed(3)\nos.environ['OWN'] = '2'\nos.environ['NEW'] = '2'\nos.mkdir('sub')\n"
            "os.chdir('sub')\npd.set_option('display.max_rows', 7)",
        )
    )
    state = random.getstate()
    desk("undo")
    assert random.getstate() != state
    assert (os.environ["OWN"], os.environ.get("NEW"), Path.cwd()) == ("1", None, here)
    assert pd.get_option("display.max_rows") == rows


def test_what_cannot_be_kept_is_named(play):
    desk = play(
        (
            "import sqlite3\ncon = sqlite3.connect(':memory:')\ng = (n for n in 'abc')",
            "next(g)\ncon.execute('create table t(x)')",
        )
    )
    with capture_output() as captured:
        desk("diff")
    told = captured.outputs[0].data["text/plain"]
    assert "con edited not saved, so undo cannot restore it: sqlite3.Connection" in told
    shown = desk("undo")
    assert "`con` was not saved: sqlite3.Connection" in shown.replace("&#96;", "`")
    assert "`g` was not saved: a generator" in shown.replace("&#96;", "`")


def test_the_model_reads_which_variables_changed(play):
    desk = play(
        (
            "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})\nxs = [[1]]\ny = 1",
            "df.loc[0, 'a'] = 9\nxs[0].append(2)\ny = 1\nz = df",
        )
    )
    result = desk.model.requests[1].messages[-1]
    assert (
        "[new z: pandas DataFrame, 2 x 1 | changed df: pandas DataFrame, 2 x 1; xs: list, 1 item]"
        in str(result)
    )


def test_diff_shows_what_changed_in_variables(play):
    desk = play(
        (
            "import pandas as pd, numpy as np\n"
            "df = pd.DataFrame({'a': [1, 2], 'b': [1.0, None]}, index=['r', 's'])\n"
            "arr = np.zeros(4)\nd = {'k': 1, 'api_key': 'sk-old-0123456789'}\nxs = [[1]]\nn = 1\n"
            "class Model:\n    pass\nm = Model(); m.w = 1\n",
            "df.loc['s', 'a'] = 9\ndf2 = df.assign(c='x')\narr[2] = 5\nd['k'] = 2\n"
            "d['api_key'] = 'sk-new-0123456789'\nxs[0].append(2)\nn = 2\nm.w = 2\nimport os",
        )
    )
    desk.shell.ex("df.loc['r', 'a'] = 100")  # after the turn
    with capture_output() as captured:
        desk("diff")
    shown = captured.outputs[0].data["text/plain"]
    for line in (
        "- a['s'] = 2",
        "+ a['s'] = 9",
        "df2 added",
        "- [2] = 0.0",
        "+ [2] = 5.0",
        "- ['k'] = 1",
        "+ ['k'] = 2",
        "+ in it: list [1, 2]",
        "+ int 2",
        "+ ['w'] = 2",
    ):
        assert line in shown, shown
    assert "sk-" not in shown
    assert "100" not in shown
    assert "os added" not in shown
