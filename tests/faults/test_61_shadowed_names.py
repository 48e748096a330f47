"""Whatever the user's variables are called: Hermes works as before, and leaves them alone."""

from __future__ import annotations

import pytest

from tests.faults.cells import calls, says

pytestmark = pytest.mark.kernel

NAMES = (
    *("print json asyncio time sys os re ast types signal threading inspect display").split(),
    *("open input len str int list dict type isinstance repr getattr hasattr format").split(),
    *("Exception BaseException KeyboardInterrupt hermes hermes_nb HermesMagics magics").split(),
    *("pandas pd np plt IPython ipykernel ipywidgets comm session agent tools").split(),
    *("globals locals vars eval exec compile super object id hash").split(),
)
"""`__import__`, `__builtins__` and `get_ipython` are not among them: without those no cell runs."""


@pytest.fixture
def shadowed(cells):
    names = ", ".join(repr(name) for name in NAMES)
    assert cells.run(f"for _name in ({names},): get_ipython().user_ns[_name] = None").status == "ok"
    yield cells
    back = f"ns = get_ipython().user_ns\n[ns.pop(each, ...) for each in ({names},)];"
    assert cells.run(back).status == "ok"


def test_61_a_turn_and_its_tools(shadowed):
    cells = shadowed
    result = cells.ask(
        calls(("run_python", {"code": "x = 6 * 7\nx"})),
        calls(("list_variables", {}), ("inspect_variable", {"name": "print"})),
        calls(("inspect_variable", {"name": "x"}), ("terminal", {"command": "echo hi"})),
        calls(("run_python", {"code": "1 / 0"})),
        says("All as before."),
        options="--approve all",
    )
    assert result.status == "ok", result.error
    assert "All as before." in result.markdown
    ran, listed, shown, x, echoed, failed = cells.results
    assert "42" in ran and "42" in x and "hi" in echoed
    assert "NoneType" in shown or "None" in shown
    assert "print" in listed
    assert "ZeroDivisionError" in failed
    kept = cells.run("get_ipython().user_ns['print'] is None, json, asyncio")
    assert kept.text.strip() == "(True, None, None)"


def test_61_commands_answer(shadowed):
    shadowed.ask(says("Hello."))
    for command in ("status", "tools", "help", "last", "history", "context", "memory", "skills"):
        result = shadowed.run(f"%hermes {command}")
        assert result.status == "ok", (command, result.error)
        assert result.markdown


def test_61_our_names_are_not_the_users(cells):
    """A turn leaves nothing in the namespace but what code it ran has left."""
    names = "sorted(each for each in globals() if not each.startswith('_'))"
    cells.ask(says("Hello."))
    before = cells.run(names).text
    cells.ask(
        calls(("run_python", {"code": "zzz = 1; del zzz"})), says("Hi."), options="--approve all"
    )
    assert cells.run(names).text == before


ODD = {
    "shows itself by leaving": "class Odd:\n    def __repr__(self): raise SystemExit('out')",
    "has every name, badly": "class Odd:\n    def __getattr__(self, name): raise SystemExit(3)",
    "of no length": (
        "class Odd:\n    __len__ = lambda self: -1\n    __eq__ = lambda self, other: 1 / 0"
    ),
    "a dict of nothing": "class Odd(dict):\n    items = __iter__ = lambda self: 1 / 0",
    "of a nameless kind": (
        "class Evil(type):\n    __name__ = property(lambda self: 1 / 0)\nOdd = Evil('Odd', (), {})"
    ),
    "in itself": "def Odd():\n    made = {}\n    made['a' * 10_000] = made\n    return made",
}


@pytest.mark.parametrize("made", ODD.values(), ids=ODD)
def test_61_odd_objects(cells, made):
    assert cells.run(f"{made}\nodd = Odd()").status == "ok"
    result = cells.ask(
        calls(("list_variables", {}), ("inspect_variable", {"name": "odd"})),
        calls(("run_python", {"code": "odd"})),
        says("Odd."),
        options="--approve all",
    )
    assert result.status == "ok", result.error
    assert "Odd." in result.markdown
    cells.run("del odd")
