"""Many writers, two kernels, a lock that is held for long: no update is lost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from itertools import pairwise

import pytest
from hermes_nb.agent.session.recorder import Recorder
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message, ToolCall, mend
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.entries import size
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.skills.document import problems
from hermes_nb.skills.library import Library
from hermes_nb.storage import database
from hermes_nb.storage.locks import WriterQueue

from tests import kernels
from tests.conftest import every_call_has_one_result
from tests.faults.notebooks import valid, written
from tests.faults.stores import ROUNDS, WRITER, finished, is_intact, names, run_python
from tests.memory.hermes_format import read_memory

# 6: Eight processes write one file: every row is there. How long one waits is `bench/memory.py`'s.
WRITERS, MESSAGES = 8, 40


@pytest.mark.slow
def test_06_many_writers(tmp_path):
    for round_ in range(ROUNDS):
        path = tmp_path / str(round_) / "n.db"
        for process in [run_python(WRITER, path, n, MESSAGES) for n in range(WRITERS)]:
            finished(process)
        store = SqliteStore(path)
        assert [session.messages for session in store.sessions()] == [MESSAGES] * WRITERS
        store.close()
        assert is_intact(path)
        assert names(path) == {"n.db"}


# 7: Eight processes that meet no database, or an old one, at the same moment all get to write.
@pytest.mark.slow
def test_07_cold_starts(tmp_path):
    for round_ in range(ROUNDS):
        path = tmp_path / f"home {round_}" / "n.db"
        for process in [run_python(WRITER, path, n, 1) for n in range(8)]:
            finished(process)
        store = SqliteStore(path)
        assert len(store.sessions()) == 8
        assert len(store.search("walrus")) == 8
        store.close()
        assert is_intact(path)


# 8: Eight processes that remember at once: what was acknowledged is there, and the limit holds.
SWAPPING = """
import json, sys
from hermes_nb.memory.curated import CuratedMemory
memory = CuratedMemory(sys.argv[1])
name = f"writer{sys.argv[2]}"
for i in range(6):
    done = memory.apply("memory", [{"action": "add", "content": f"{name} note {i} ."}])
    print(json.dumps([done.applied, "add", f"{name} note {i} .", done.message]), flush=True)
    if i % 2 and done.applied:
        old = f"{name} note {i - 1} ."
        new = {"action": "replace", "old_text": old, "content": f"{name} kept {i}"}
        out = {"action": "remove", "old_text": f"{name} note {i} ."}
        done = memory.apply("memory", [new, out])
        print(json.dumps([done.applied, "swap", f"{name} kept {i}", done.message]), flush=True)
"""
GREEDY = """
import sys
from hermes_nb.memory.curated import CuratedMemory
memory = CuratedMemory(sys.argv[1])
for i in range(6):
    content = f"writer{sys.argv[2]} note {i} " + "x" * 80
    if memory.apply("user", [{"action": "add", "content": content}]):
        print(content, flush=True)
"""


@pytest.mark.slow
def test_08_no_update_is_lost(home):
    for round_ in range(ROUNDS):
        processes = [run_python(SWAPPING, home, f"{round_}.{n}") for n in range(8)]
        answers = [json.loads(line) for each in processes for line in finished(each)]
        assert all(applied for applied, *_ in answers), [a for a in answers if not a[0]]
        memory = CuratedMemory(home)
        wanted = {content for _, action, content, _ in answers if action == "swap"}
        assert set(memory.entries("memory")) == wanted
        assert read_memory(home, "memory") == memory.entries("memory")
        assert len(memory.history("memory")) == len(answers)
        batch = [{"action": "remove", "old_text": entry} for entry in memory.entries("memory")]
        assert memory.apply("memory", batch)
        (home / "memories/.hermes_nb/history.jsonl").unlink()


@pytest.mark.slow
def test_08_the_limit_is_respected(home):
    for _ in range(ROUNDS):
        processes = [run_python(GREEDY, home, n) for n in range(8)]
        acknowledged = [line for each in processes for line in finished(each)]
        memory = CuratedMemory(home)
        entries = memory.entries("user")
        assert sorted(entries) == sorted(acknowledged)
        assert 1_200 < size(entries) <= 1_375
        assert memory.apply("user", [{"action": "remove", "old_text": e} for e in entries])


# 9: Eight processes that change one skill at once: every change is there, or was refused.
PATCHER = """
import json, sys
from hermes_nb.skills.library import Library
library = Library([sys.argv[1]])
writer = sys.argv[2]
for i in range(10):
    new = f"<end>\\n- {writer} wrote {i}."
    outcome = library.manage("patch", "counted", old_string="<end>", new_string=new)
    print(json.dumps([outcome.applied, f"- {writer} wrote {i}.", outcome.message]), flush=True)
"""
CREATOR = """
import sys
from hermes_nb.skills.library import Library
content = "---\\nname: raced\\ndescription: Only one.\\n---\\n# By " + sys.argv[2] + "\\n"
outcome = Library([sys.argv[1]]).manage("create", "raced", content=content, category=sys.argv[2])
print(sys.argv[2] if outcome.applied else outcome.message)
"""


@pytest.mark.slow
def test_09_no_patch_is_lost(tmp_path):
    root = tmp_path / "skills"
    library = Library([root])
    for _ in range(ROUNDS):
        content = "---\nname: counted\ndescription: Counts.\n---\n# Log\n<end>\n"
        assert library.manage("create", "counted", content=content)
        processes = [run_python(PATCHER, root, f"writer{n}") for n in range(8)]
        answers = [json.loads(line) for each in processes for line in finished(each)]
        assert len(answers) == 80
        assert all(applied for applied, *_ in answers), [a for a in answers if not a[0]]
        text = library.view("counted").text
        assert problems(text, name="counted") == []
        for _, line, _ in answers:
            assert text.count(line) == 1
        assert library.usage()["counted"].patches % 80 == 0
        assert library.manage("delete", "counted")


@pytest.mark.slow
def test_09_only_one_creates_a_skill(tmp_path):
    root = tmp_path / "skills"
    processes = [run_python(CREATOR, root, f"c{n}") for n in range(8)]
    answers = [line for each in processes for line in finished(each)]
    (winner,) = [answer for answer in answers if len(answer) == 2]
    assert sum("exists in home skills" in answer for answer in answers) == 7
    assert [path.parent.parent.name for path in root.rglob("SKILL.md")] == [winner]
    assert [path.name for path in root.iterdir() if path.name != ".hermes_nb"] == [winner]


# 10: Two kernels edit one notebook: the second is told of a conflict, and nobody's cell is lost.
AGENT = """
from pathlib import Path
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import ToolContext
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.cell_tools import notebook_tools
async def document(_): return FileDocument(Path({path!r}))
tools = notebook_tools(get_ipython(), document)
async def use(name, **arguments):
    context = ToolContext(call=ToolCall(id='1', name=name, arguments=arguments))
    try:
        result = await tools.get(name).run(context, arguments)
        print(getattr(result, 'text', result))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def pair():
    env = dict(os.environ)
    with kernels.kernel(env, cwd=".") as first, kernels.kernel(env, cwd=".") as second:
        yield first, second


@pytest.mark.slow
def test_10_the_second_sees_a_conflict_and_clobbers_nothing(pair, tmp_path):
    path = written(tmp_path / "shared.ipynb", "a = 1", "b = 2")
    first, second = pair
    for kernel in pair:
        assert not kernel.run(AGENT.format(path=str(path))).error
        assert "a = 1" in kernel.run("await use('read_cells')").text
    assert "edited" in first.run("await use('edit_cell', id='cell0', new='a = 10')").text
    answer = second.run("await use('edit_cell', id='cell0', new='a = 20')").text
    assert answer.startswith("CellConflict")
    assert "a = 10" in answer
    assert "".join(valid(path)["cells"][0]["source"]) == "a = 10"
    # Both at once: the lock puts one behind the other, every cell of either is there.
    many = "for n in range(20): await use('insert_cell', source=f'{who} {n}')"
    sent = [k.client.execute(f"who = {name!r}\n{many}") for k, name in zip(pair, "AB", strict=True)]
    for kernel, message in zip(pair, sent, strict=True):
        while kernel.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != message:
            pass
    sources = ["".join(cell["source"]) for cell in valid(path)["cells"]]
    assert sorted(sources) == sorted(
        ["a = 10", "b = 2", *(f"{who} {n}" for who in "AB" for n in range(20))]
    )


# 22: A database that another program keeps locked costs a turn one wait; it is saved later.
def play(path):
    """Take a turn while the file is locked; return how long it took and what happened after."""
    store, warnings = SqliteStore(path), []
    session = store.start()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    recorder = Recorder(store, session, warnings.append)
    begun = time.monotonic()
    for n in range(5):
        recorder(MessageAdded(Message.user(str(n))))
    took = time.monotonic() - begun
    assert recorder.unsaved == 5
    recorder(TurnEnded("answered"))
    other.execute("ROLLBACK")
    other.close()
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    assert len(warnings) == 1 and "locked" in warnings[0]
    assert [message.text for message in store.messages(session)] == list("01234")
    store.close()
    return took


def test_22_somebody_keeps_the_turn(tmp_path, monkeypatch):
    """As a kernel does that is halted within a transaction; it is not waited for without end."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    store, warnings = SqliteStore(tmp_path / "n.db"), []
    recorder = Recorder(store, store.start(), warnings.append)
    halted = WriterQueue(tmp_path / "n.db")
    halted.take(0)
    for n in range(3):
        recorder(MessageAdded(Message.user(str(n))))
    assert recorder.unsaved == 3
    assert len(warnings) == 1 and "locked" in warnings[0]
    halted.close()
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    store.close()


def test_22_a_wait_that_is_broken_off_leaves_the_turn_to_others(tmp_path):
    """Ctrl-C in code that waits to write: the place in the queue must not be had for good."""
    store = SqliteStore(tmp_path / "n.db")
    session = store.start()
    halted = WriterQueue(tmp_path / "n.db")
    halted.take(0)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.append(session, Message.user("one"))
    finally:
        signal.signal(signal.SIGALRM, before)
    halted.close()
    halted.take(2)  # whoever waited has gone, though it was the next
    halted.close()
    store.append(session, Message.user("two"))
    assert [message.text for message in store.messages(session)] == ["two"]
    store.close()


def test_22_locked_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    assert play(tmp_path / "n.db") < 3


@pytest.mark.slow
def test_22_the_wait_is_bounded(tmp_path):
    assert play(tmp_path / "n.db") < 2 * database.BUSY_SECONDS


# 77: Two kernels in one session: whoever comes second goes on in a copy, and roles alternate.
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


class Shell:
    """A shell in a process of its own; `run` returns what a cell shows, and the roles it sent."""

    def __init__(self, name):
        self.process = run_python(KERNEL, name)

    def run(self, cell):
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def test_77_two_kernels_one_session(home):
    one, two = Shell("one"), Shell("two")
    with one.process, two.process:
        assert "copy" not in one.run("%%hermes --session garden\nWhat grows?")[0]
        assert "copy" not in two.run("%%hermes --session garden\nAnd here?")[0]
        shown, roles = one.run("%%hermes\nAnd next year?")
        assert shown.count("continues in a copy") == 1
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
