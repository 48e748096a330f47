"""Two kernels in one session: whoever comes second goes on in a copy, and roles alternate."""

from __future__ import annotations

import json
from itertools import pairwise

from hermes_nb.core.messages import Message, ToolCall, mend
from hermes_nb.memory.sessions import SqliteStore

from tests.conftest import every_call_has_one_result
from tests.faults.stores import run_python

KERNEL = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
from hermes_nb import use_model
from hermes_nb.models.scripted import ScriptedModel
shell = InteractiveShell.instance()
shell.run_cell("%load_ext hermes_nb").raise_error()
model = ScriptedModel([f"answer {n} of {sys.argv[1]}" for n in range(9)])
use_model(model)
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        shell.run_cell(json.loads(line)).raise_error()
    roles = [m.role for m in model.requests[-1].messages[1:]]
    print(json.dumps([shown.getvalue(), roles]), flush=True)
"""


class Kernel:
    """A shell in a process of its own; `run` returns what a cell shows, and the roles it sent."""

    def __init__(self, name):
        self.process = run_python(KERNEL, name)

    def run(self, cell):
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def test_77_two_kernels_one_session(home):
    one, two = Kernel("one"), Kernel("two")
    with one.process, two.process:
        assert "copy" not in one.run("%%hermes --session garden\nWhat grows?")[0]
        assert "copy" not in two.run("%%hermes --session garden\nAnd here?")[0]
        shown, roles = one.run("%%hermes\nAnd next year?")
        assert shown.count("goes on in a copy") == 1
        assert roles == ["user", "assistant", "user"]
        for kernel in (two, one, two):
            shown, roles = kernel.run("%%hermes\nWhat else?")
            assert "copy" not in shown
            assert all(a != b for a, b in pairwise(roles))
        one.process.stdin.close()
        two.process.stdin.close()
    store = SqliteStore(home / "notebook.db")
    copy, first = sorted(store.sessions(), key=lambda session: session.parent, reverse=True)
    assert copy.parent == first.id
    assert copy.title == first.title == "garden"
    by_name = {"one": copy, "two": first}
    for name, session in by_name.items():
        texts = [message.text.strip() for message in store.messages(session.id)]
        assert texts[:2] == ["What grows?", "answer 0 of one"]
        assert [text for text in texts[3::2] if name not in text] == []
    assert len(store.messages(first.id)) == 8
    assert len(store.messages(copy.id)) == 6
    store.close()


def test_77_rows_that_are_interleaved_already_are_merged():
    first, second = (ToolCall(id=id_, name="t") for id_ in "xy")
    rows = [
        *(Message.user("one"), Message.user("two")),
        *(Message.assistant("a", calls=[first]), Message.assistant("b", calls=[second])),
        *(Message.tool(first, "x"), Message.tool(second, "y")),
        *(Message.assistant("answer one"), Message.assistant("answer two")),
    ]
    mended = mend(rows, note="lost")
    assert [message.role for message in mended] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [message.text for message in mended] == [
        *("one\ntwo", "a\nb", "x", "y", "answer one\nanswer two")
    ]
    assert every_call_has_one_result(mended)
