"""Loaded ten times, beside other extensions, in any order: one set of hooks, one answer."""

from __future__ import annotations

import pytest

from tests.faults.cells import says

pytestmark = pytest.mark.kernel

OTHER = """
calls = []
def shout(lines):
    calls.append("transformed")
    return lines
def before(): calls.append("before")
def load_ipython_extension(shell):
    shell.input_transformers_post.append(shout)
    shell.input_transformers_cleanup.append(shout)
    shell.events.register("pre_execute", before)
def unload_ipython_extension(shell):
    shell.input_transformers_post.remove(shout)
    shell.input_transformers_cleanup.remove(shout)
    shell.events.unregister("pre_execute", before)
"""
HOOKS = """
ip = get_ipython()
every = [*ip.input_transformers_post, *ip.input_transformers_cleanup]
ours = [each for each in every if 'hermes_nb' in getattr(each, '__module__', '')]
events = [each for name in ip.events.callbacks.values() for each in name]
matchers = [each for each in ip.Completer.custom_matchers if getattr(each, 'hermes', False)]
configurables = [each for each in ip.configurables if type(each).__name__ == 'HermesMagics']
import threading
threads = sorted(each.name for each in threading.enumerate() if 'hermes' in each.name)
print([len(ours), len(matchers), len(configurables), len(events), len(every), len(threads)])
"""


@pytest.fixture
def other(cells):
    (cells.folder / "other_extension.py").write_text(OTHER, encoding="utf-8")
    yield cells
    cells.run("%unload_ext other_extension\n%reload_ext hermes_nb")


@pytest.mark.parametrize(
    "again",
    [
        "%reload_ext hermes_nb",
        "%load_ext hermes_nb",
        "%unload_ext hermes_nb\n%load_ext hermes_nb",
        "import hermes_nb; hermes_nb.load_ipython_extension(get_ipython())",
    ],
)
def test_60_ten_times(cells, again):
    cells.ask(says("Hello."))
    before = cells.printed(HOOKS)
    for _ in range(10):
        assert cells.run(again).status == "ok"
    cells.ask(says("Hello."))
    assert cells.printed(HOOKS) == before
    result = cells.ask(says("Once."), allow_stdin=True)
    assert result.status == "ok"
    assert result.markdown.count("Once.") == 1
    assert len(cells.server.exchanges) == 1


@pytest.mark.parametrize("first", ["before", "after"])
def test_60_beside_another(other, first):
    cells = other
    order = ["%load_ext other_extension", "%reload_ext hermes_nb"]
    assert cells.run("\n".join(order if first == "before" else order[::-1])).status == "ok"
    for _ in range(3):
        cells.run("%reload_ext hermes_nb")
    assert cells.printed("import other_extension; print(len(other_extension.calls) > 0)") == "True"
    assert "Both." in cells.ask(says("Both.")).markdown
    cells.run("%unload_ext other_extension")
    count = "print(len(other_extension.calls))"
    assert cells.printed(count) == cells.printed(count), "its hooks are gone, ours are not"
    assert "Alone." in cells.ask(says("Alone.")).markdown


def test_60_unloaded_it_is_gone(cells):
    cells.run("%unload_ext hermes_nb")
    assert cells.printed(HOOKS).startswith("[0, 0, 0, ")
    gone = cells.run("%hermes hello")
    assert gone.status == "error" or "not found" in gone.text
    assert cells.run("%load_ext hermes_nb").status == "ok"
    assert "Back." in cells.ask(says("Back.")).markdown


def test_60_another_magic_of_that_name(cells):
    """Who registers the name last has it, and ours comes back with a reload."""
    cells.run("get_ipython().register_magic_function(lambda line: print('mine'), 'line', 'hermes')")
    cells.run("%hermes hello")
    assert cells.run("%reload_ext hermes_nb").status == "ok"
    assert "Ours." in cells.ask(says("Ours.")).markdown
