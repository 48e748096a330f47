"""Processes killed or forked while they write: what they were told is safe is there, whole."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest
from hermes_nb.core.files import TEMPORARY
from hermes_nb.core.messages import Message
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.skills.document import problems
from hermes_nb.skills.library import Library

from tests.faults.notebooks import STREAM, tools_on, use, valid, written
from tests.faults.stores import KILLS, WRITER, finished, is_intact, killed, names, run_python
from tests.memory.hermes_format import read_memory


# 1: A process killed while it appends loses nothing it was told is safe.
def test_01_kill_during_append(tmp_path):
    path = tmp_path / "n.db"
    for round_ in range(KILLS):
        process = run_python(WRITER, path, round_, 100_000)
        session, *acknowledged = killed(process, random.Random(round_).uniform(0, 0.15))
        store = SqliteStore(path)
        rows = store.rows(session)
        # One more may be there: written, but killed before it could be reported.
        assert len(acknowledged) <= len(rows) <= len(acknowledged) + 1
        assert [row.message.text.split()[0] for row in rows] == [str(i) for i in range(len(rows))]
        assert store.get(session).messages == len(rows)
        assert {hit.position for hit in store.search("walrus", session_id=session)} <= {
            row.position for row in rows
        }
        store.close()
        assert names(path) == {"n.db"}
    assert is_intact(path)


# 2: A process killed while it remembers leaves the old file or the new one, and nothing else.
REMEMBERING = """
import sys
from hermes_nb.memory.curated import CuratedMemory
memory = CuratedMemory(sys.argv[1])
name = sys.argv[2]
print("ready", flush=True)
for i in range(100_000):
    old = f"{name} counted to {i - 1}"
    step = {"action": "replace", "old_text": old} if i else {"action": "add"}
    pad = "x" * (i * 37 % 600)
    outcome = memory.apply("memory", [{**step, "content": f"{name} counted to {i} {pad}"}])
    assert outcome.applied, outcome.message
    print(i, flush=True)
"""


@pytest.mark.slow
def test_02_kill_during_memory_write(home):
    kept = []
    for round_ in range(KILLS):
        name = f"writer{round_}"
        process = run_python(REMEMBERING, home, name)
        _, *acknowledged = killed(process, random.Random(round_).uniform(0, 0.25))
        memory = CuratedMemory(home)
        assert not [each for each in home.rglob("*") if each.name.endswith(TEMPORARY)]
        entries = memory.entries("memory")
        assert entries == read_memory(home, "memory")
        assert entries[: len(kept)] == kept
        own = [int(entry.split()[3]) for entry in entries[len(kept) :]]
        done = len(acknowledged)
        # One more may be there: written, but killed before it could be reported.
        assert own in ([], [0]) if not done else own in ([done - 1], [done])
        recorded = [r.changes[0].after for r in memory.history() if name in r.changes[0].after]
        assert set(entries[len(kept) :]) <= set(recorded)
        # The next writer gets the lock and finds a file to go on with.
        assert memory.apply("memory", [{"action": "add", "content": f"after {round_}"}])
        newest = [record for record in memory.history() if name in record.changes[0].after][:1]
        assert [r.changes[0].after for r in newest] == entries[len(kept) :]
        if own:
            assert memory.apply("memory", [{"action": "remove", "old_text": f"{name} "}])
        kept.append(f"after {round_}")
        assert memory.entries("memory") == kept
        assert not list((home / "memories").glob("*.bak.*"))


# 3: A process killed while it writes skills leaves whole skills, old or new, and nothing else.
SKILL_WRITER = """
import sys
from hermes_nb.skills.library import Library
library = Library([sys.argv[1]])
base = sys.argv[2]
library.index()
print("ready", flush=True)

def must(outcome):
    assert outcome.applied, outcome.message

for i in range(100_000):
    name = f"{base}-{i}"
    head = f"---\\nname: {name}\\ndescription: Counts.\\n---\\n"
    must(library.manage("create", name, content=head + "# 0\\n" + "pad\\n" * 900, category=base))
    must(library.manage("patch", name, old_string="# 0", new_string=f"# {i}\\n" + "x" * 500))
    must(library.manage("write_file", name, file_path="references/a.md", file_content="y" * 3000))
    if i % 3 == 1:
        must(library.manage("delete", name))
    if i % 3 == 2:
        must(library.manage("undo", name))
    print(name, flush=True)
"""


def folders(root):
    """Return the folders that should be skills: those at the ends of the tree."""
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        support = {"references", "scripts", "templates", "assets"} & set(parts)
        if path.is_dir() and ".hermes_nb" not in parts and not support:
            children = [each for each in path.iterdir() if each.is_dir()]
            if not children or children[0].name == "references":
                yield path


@pytest.mark.slow
def test_03_kill_during_skill_write(tmp_path):
    root = tmp_path / "skills"
    for round_ in range(KILLS):
        process = run_python(SKILL_WRITER, root, f"w{round_}")
        _, *acknowledged = killed(process, random.Random(round_).uniform(0, 0.6))
        library = Library([root])
        assert library.skipped() == []
        there = {skill.name for skill in library.list()}
        for folder in folders(root):
            # An emptied category may still be there: its last skill was just taken away.
            if folder.name == f"w{round_}" and not list(folder.iterdir()):
                continue
            content = (folder / "SKILL.md").read_text(encoding="utf-8")
            assert problems(content, name=folder.name) == []
        for name in acknowledged:
            deleted = int(name.rpartition("-")[2]) % 3 == 1
            assert (name in there) is not deleted
        # The next writer finds no lock held, and sweeps what was left half done.
        head = f"---\nname: after{round_}\ndescription: Comes after.\n---\n"
        assert library.manage("create", f"after{round_}", content=head + "# A\n")
        for skill in [*library.list(f"w{round_}"), library.get(f"after{round_}")]:
            outcome = library.manage(
                "write_file", skill.name, file_path="assets/a", file_content="z"
            )
            assert outcome.applied, outcome.message
            assert library.manage("patch", skill.name, old_string="# ", new_string="## ")
        assert not (root / ".hermes_nb/building").exists()
        left = [
            path
            for path in root.rglob(f"*{TEMPORARY}")
            if path.parent.parent != root / ".hermes_nb"
        ]
        assert [path for path in left if ".hermes_nb" not in path.parts] == []


# 4: A process that is killed while it writes a notebook leaves one whole version of it.
CELL_WRITER = """
import asyncio, sys
from pathlib import Path
from hermes_nb.notebook.document.file import FileDocument

async def edit():
    document = FileDocument(Path(sys.argv[1]), keep=Path(sys.argv[2]))
    for number in range(10_000):
        cell = await document.insert(f"n = {number}\\n" + "x" * 20_000, index=0)
        await document.set_outputs(cell.id, [{
            "output_type": "stream", "name": "stdout", "text": f"ran {number}"}])
        print(number, flush=True)

asyncio.run(edit())
"""


@pytest.mark.slow
def test_04_every_acknowledged_cell_is_there_and_nothing_is_half(shell, tmp_path):
    chance = random.Random(4)
    for kill in range(KILLS):
        path = written(tmp_path / f"{kill}.ipynb", "a = 1")
        keep = tmp_path / "keep"
        process = run_python(CELL_WRITER, path, keep)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        out = process.stdout.read()  # by the reader that has the first line, and maybe more
        process.communicate(timeout=60)
        acknowledged = len(out.split()) + 1
        cells = valid(path)["cells"]
        assert cells[-1]["outputs"] == [STREAM]
        numbers = [int("".join(cell["source"]).split()[2]) for cell in cells[:-1]]
        assert numbers == list(range(len(numbers)))[::-1]
        assert acknowledged <= len(numbers) <= acknowledged + 1
        use(tools_on(shell, path, keep=keep), "insert_cell", source="the lock is free")
        assert "the lock is free" in path.read_text(encoding="utf-8")


# 5: A process killed while it compresses leaves the old conversation or the new one, whole.
COMPRESSOR = """
import sys
from hermes_nb.core.messages import Message
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
store, tag = SqliteStore(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
for n in range(100_000):
    now = store.messages("s")
    if n % 3 == 2:
        store.restore("s")
    else:
        store.replace("s", [now[0], Message.user(f"summary {tag}.{n}"), *now[-2:]])
        store.append("s", Message.user(f"m{tag}.{n}"))
    print(n, flush=True)
"""


def test_05_kill_during_compression(tmp_path):
    path = tmp_path / "n.db"
    store = SqliteStore(path)
    store.start(session_id="s", system_prompt="the prompt")
    for n in range(6):
        store.append("s", Message.user(f"first {n}"))
    store.close()
    for round_ in range(KILLS):
        killed(run_python(COMPRESSOR, path, round_), random.Random(round_).uniform(0, 0.1))
        store = SqliteStore(path)
        messages = store.messages("s")
        assert messages[0].text == "first 0"
        assert len(messages) == store.get("s").messages
        assert len({message.text for message in messages}) == len(messages)
        active = [row.message for row in store.rows("s") if row.state == "active"]
        assert sorted(m.text for m in active) == sorted(m.text for m in messages)
        store.close()
    assert is_intact(path)
    store = SqliteStore(path)
    while store.restore("s") is not None:
        pass
    assert [m.text for m in store.messages("s")][:6] == [f"first {n}" for n in range(6)]
    store.close()


# 63: A forked child never touches its parent's connection, and both lose nothing.
FORKING = """
import os, sys, threading
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
store = SqliteStore(sys.argv[1])
session = store.start(session_id="s")
stop = threading.Event()
def write(n):
    count = 0
    while not stop.is_set():
        store.append(session, Message.user(f"thread {n} {count}"))
        count += 1
threads = [threading.Thread(target=write, args=(n,)) for n in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
children = []
for n in range(5):
    store.append(session, Message.user(f"parent {n}"))
    pid = os.fork()
    if pid == 0:
        assert store.database._opened is None
        for i in range(10):
            store.append(session, Message.user(f"child {n} {i}"))
        os._exit(0) if n % 2 else sys.exit(0)
    children.append(pid)
    store.append(session, Message.user(f"after {n}"))
stop.set()
for thread in threads:
    thread.join()
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
store.append(session, Message.user("the end"))
texts = [message.text for message in store.messages(session)]
for n in range(5):
    assert [t for t in texts if t.startswith(f"child {n}")] == [f"child {n} {i}" for i in range(10)]
    assert f"parent {n}" in texts and f"after {n}" in texts
for n in range(int(sys.argv[2])):
    mine = [t for t in texts if t.startswith(f"thread {n}")]
    assert mine == [f"thread {n} {i}" for i in range(len(mine))]
assert texts[-1] == "the end"
store.close()
print(sorted(os.listdir(os.path.dirname(sys.argv[1]))))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX forks")
def test_63_fork(tmp_path):
    path = tmp_path / "n.db"
    assert finished(run_python(FORKING, path, 0)) == ["['n.db', 'n.db.lock']"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX forks")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns of forks beside threads")
def test_63_fork_while_threads_write(tmp_path):
    path = tmp_path / "n.db"
    assert finished(run_python(FORKING, path, 2)) == ["['n.db', 'n.db.lock']"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX forks")
def test_63_a_child_that_inherits_a_connection_after_all_leaves_it_alone(tmp_path):
    script = """
    import os, sys
    from hermes_nb.core.errors import StoreError
    from hermes_nb.core.messages import Message
    from hermes_nb.memory.sessions import SqliteStore
    store = SqliteStore(sys.argv[1])
    store.start(session_id="s")
    store.database.before_fork = lambda: None  # as if C code forked
    store.database.after_fork = lambda *, child: None
    pid = os.fork()
    if pid == 0:
        try:
            store.append("s", Message.user("child"))
        except StoreError as error:
            assert "forked" in str(error)
            store.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    store.append("s", Message.user("parent"))
    print([message.text for message in store.messages("s")])
    """
    assert finished(run_python(script, tmp_path / "n.db")) == ["['parent']"]
