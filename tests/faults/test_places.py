"""Disks that are full, homes that cannot be written, directories that go away."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hermes_nb.agent.session.recorder import Recorder
from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.files import TEMPORARY
from hermes_nb.core.messages import Message
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.skills.document import problems
from hermes_nb.skills.library import Library
from hermes_nb.tools.memory import memory_tools
from hermes_nb.tools.skills import skills

from tests.faults.notebooks import refused, tools_on, use, valid, written
from tests.faults.stores import fill, filled, finished, is_intact, room, run_python
from tests.loopback import calls, says
from tests.memory.hermes_format import read_memory
from tests.tools.support import run

# 11: On a full disk the turn goes on in memory with one warning, and is saved when there is room.
TURNS, LONG = 60, "x" * 20_000


def play(store, session, warnings, *, room):
    """Take turns until the disk is full and some more, then make room; all of it is saved."""
    recorder = Recorder(store, session, warnings.append)
    recorder.begin(title="the walrus")
    most = 0
    for n in range(TURNS):
        recorder(MessageAdded(Message.user(f"{n} {LONG}")))
        recorder(TurnEnded("answered"))
        most = max(most, recorder.unsaved)
    assert most > 5
    room()
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    assert len(warnings) == 1
    texts = [message.text.split()[0] for message in store.messages(session)]
    assert texts == [str(n) for n in range(TURNS)]


def enlarge(disk):
    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)


@room("2m")
def test_11_disk_full(small_disk):
    path = small_disk / "home" / "n.db"
    store, warnings = SqliteStore(path), []
    play(store, "s", warnings, room=lambda: enlarge(small_disk))
    assert "full" in warnings[0]
    store.close()
    assert store.warnings == []
    assert is_intact(path)


@room("2m")
def test_11_disk_full_from_the_beginning(small_disk):
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        file.write(b"x" * (2 * 1024 * 1024 - 32_768))
    path = small_disk / "home" / "n.db"
    store, warnings = SqliteStore(path), []
    play(store, "s", warnings, room=lambda: enlarge(small_disk))
    assert store.get("s").title == "the walrus"
    store.close()


def test_11_no_more_pages(tmp_path):
    path = tmp_path / "n.db"
    store, warnings = SqliteStore(path), []

    def limit(pages):
        store.database.read(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchone())

    store.sessions()
    limit(200)
    play(store, "s", warnings, room=lambda: limit(1_000_000))
    store.close()
    assert is_intact(path)


# 12: A full disk: a structured refusal, and what the agent knows is what is on the disk.
def add_many(tool):
    for number in range(40):
        run(tool, action="add", content=f"note {number} " + "y" * 40)


@pytest.mark.parametrize("first", [True, False])
@room("64k")
def test_12_disk_full_memory(small_disk, first):
    home = small_disk / "home"
    memory = CuratedMemory(home)
    tool = memory_tools(memory).get("memory")
    if not first:
        run(tool, action="add", content="one")
    filler = fill(small_disk / "filler")
    before = memory.entries("memory"), len(memory.history())
    with pytest.raises(ToolError, match=r"No space left on device.*continue without it"):
        add_many(tool)  # a page of the file system may have had some room
    entries = memory.entries("memory")
    assert entries[: len(before[0])] == before[0]
    assert read_memory(home, "memory") == entries == CuratedMemory(home).entries("memory")
    assert len(memory.history()) == len(entries)
    assert not [each for each in home.rglob("*") if each.name.endswith(TEMPORARY)]
    filler.unlink()
    run(tool, action="add", content="there is room again")
    assert read_memory(home, "memory") == [*entries, "there is room again"]
    assert len(memory.history()) == len(entries) + 1


# 13: A full disk: a skill is as it was, no folder is left empty, and the model reads why.
def skill(name, size=0):
    return f"---\nname: {name}\ndescription: About {name}.\n---\n# How\n" + "step\n" * (size // 5)


def tree(root):
    """Return what lies among the skills, folders too, without the state beside them."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in root.rglob("*")
        if ".hermes_nb" not in path.parts
    }


@room("128k")
def test_13_disk_full_skill(small_disk):
    root = small_disk / "skills"
    library = Library([root])
    manage = skills(library).get("skill_manage")
    run(manage, action="create", name="draw", content=skill("draw"), category="data")
    before = tree(root)
    large = "y" * 150_000
    for action, name, details in (
        ("create", "mail", {"content": skill("mail", 99_000), "category": "new"}),
        ("create", "post", {"content": skill("post", 99_000), "category": "new"}),
        ("patch", "draw", {"old_string": "How", "new_string": "x" * 95_000}),
        ("patch", "draw", {"old_string": "How", "new_string": "z" * 95_000}),
        ("write_file", "draw", {"file_path": "assets/a", "file_content": large}),
    ):
        outcome = library.manage(action, name, **details)
        if outcome.applied:
            before = tree(root)
        assert outcome.applied or "the disk is full" in outcome.message
        assert tree(root) == before
        assert not [path for path in root.rglob("*") if path.name.endswith(TEMPORARY)]
        for each in library.list():
            content = each.file.read_text(encoding="utf-8")
            assert problems(content, name=each.name) == []
    with pytest.raises(ToolError, match="the disk is full"):
        run(manage, action="write_file", name="draw", file_path="assets/a", file_content=large)
    assert library.skipped() == []


@room("128k")
def test_13_a_disk_without_any_room(small_disk):
    root = small_disk / "skills"
    library = Library([root])
    assert library.manage("create", "draw", content=skill("draw"), category="data")
    before = tree(root)
    fill(small_disk / "filler")
    for action, details in (
        ("create", {"content": skill("draw-2"), "category": "new"}),
        ("patch", {"old_string": "How", "new_string": "Why"}),
        ("write_file", {"file_path": "references/a.md", "file_content": "x"}),
        ("delete", {}),
    ):
        outcome = library.manage(action, "draw-2" if action == "create" else "draw", **details)
        assert "the disk is full" in outcome.message, (action, outcome.message)
        assert tree(root) == before
    assert "How" in library.view("draw").text
    assert "- draw:" in library.index()
    (small_disk / "filler").unlink()
    assert library.manage("patch", "draw", old_string="How", new_string="Why")
    assert library.manage("undo", "draw")
    assert tree(root) == before


# 14: A full disk: the notebook stays as it was, the model is told, and room is all it takes.
@room("160k")
def test_14_the_old_file_is_intact_until_there_is_room(shell, small_disk):
    path = written(small_disk / "n.ipynb", "a = 1")
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 130_000)
    before = path.read_bytes()
    tools = tools_on(shell, path, keep=small_disk / "keep")
    source = "y" * 40_000
    assert "the disk is full" in refused(tools, "insert_cell", source=source)
    assert path.read_bytes() == before
    assert not [each for each in small_disk.rglob("*") if each.name.endswith(TEMPORARY)]
    assert "a = 1" in use(tools, "read_cells")
    filler.unlink()
    assert "inserted" in use(tools, "insert_cell", source=source)
    assert len(valid(path)["cells"]) == 2


# 24: A home that may not be written is read; new sessions stay in memory, with one warning.
SCRIPT = """
import json, os, sys
path, action = sys.argv[1], sys.argv[2]
from hermes_nb.agent.session.recorder import Recorder
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message
from hermes_nb.core.errors import StoreError
from hermes_nb.memory.sessions import SqliteStore
SqliteStore(":memory:").search("walrus")  # the package may be where only root can read it
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store, warnings = SqliteStore(path), []
recorder = Recorder(store, "new", warnings.append)
recorder.begin(title="in memory")
for n in range(3):
    recorder(MessageAdded(Message.user(f"m{n}")))
recorder(TurnEnded("answered"))
try:
    found = [len(store.sessions()), len(store.search("walrus"))]
except StoreError as error:
    found = str(error)
before = recorder.unsaved
print("tried", flush=True)
sys.stdin.readline() if action == "wait" else None
recorder(TurnEnded("answered"))
print(json.dumps([warnings, before, recorder.unsaved, found]))
"""


@pytest.fixture
def open_home():
    """Give a home whose way there is open to all: as root, the tests run as somebody else."""
    if sys.platform == "win32":
        pytest.skip("modes of directories are POSIX")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "open_home"
        Path(folder).chmod(0o755)
        place.mkdir()
        yield place
        place.chmod(0o700)


def forbid(place):
    """Let everybody read a directory and its files, and nobody write them."""
    for each in place.iterdir():
        each.chmod(0o444)
    place.chmod(0o555)


def test_24_read_only_home(open_home):
    filled(open_home / "n.db")
    forbid(open_home)
    _, line = finished(run_python(SCRIPT, open_home / "n.db", "go"))
    warnings, before, unsaved, found = json.loads(line)
    assert (len(warnings), before, unsaved) == (1, 4, 4)
    assert "cannot be written" in warnings[0]
    assert found[0] == 3 and found[1] > 0
    assert sorted(each.name for each in open_home.iterdir()) == ["n.db", "n.db.lock"]


def test_24_read_only_and_empty(open_home):
    open_home.chmod(0o555)
    _, line = finished(run_python(SCRIPT, open_home / "n.db", "go"))
    warnings, before, unsaved, found = json.loads(line)
    assert (len(warnings), before, unsaved) == (1, 4, 4)
    assert "Permission denied" in found
    assert list(open_home.iterdir()) == []


def test_24_read_only_file_until_it_is_not(open_home):
    filled(open_home / "n.db")
    (open_home / "n.db").chmod(0o444)
    (open_home / "n.db.lock").chmod(0o666)
    open_home.chmod(0o777)
    process = run_python(SCRIPT, open_home / "n.db", "wait")
    assert process.stdout.readline() == "tried\n"
    (open_home / "n.db").chmod(0o666)
    out, err = process.communicate("go on\n", timeout=60)
    assert process.returncode == 0, err
    warnings, before, unsaved, found = json.loads(out)
    assert (len(warnings), before, unsaved) == (1, 4, 0)
    assert found[0] == 3


# 25: A home that is a file, or below one, is an error that says so, and no turn fails over it.
@pytest.mark.parametrize("below", ["n.db", "deeper/n.db"])
def test_25_no_home(tmp_path, below):
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    store, warnings = SqliteStore(tmp_path / "home" / below), []
    with pytest.raises(StoreError, match="home"):
        store.sessions()
    recorder = Recorder(store, "s", warnings.append)
    recorder.begin()
    recorder(MessageAdded(Message.user("m")))
    recorder(TurnEnded("answered"))
    assert len(warnings) == 1 and recorder.unsaved == 2
    (tmp_path / "home").unlink()
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    assert [message.text for message in store.messages("s")] == ["m"]
    store.close()


def test_25_a_directory_in_the_place_of_the_file(tmp_path):
    (tmp_path / "n.db").mkdir()
    store = SqliteStore(tmp_path / "n.db")
    with pytest.raises(StoreError):
        store.start()
    store.close()


# 55: The working directory is deleted under a session: said, and no traceback; another one works.
@pytest.fixture
def gone(cells, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    assert cells.run(f"%cd -q {work}").status == "ok"
    cells.run("%hermes config vision auto")  # tools are made for the directory of the moment
    yield work
    assert cells.run(f"%cd -q {cells.folder}").status == "ok"
    cells.run("%hermes config vision auto")


@pytest.mark.kernel
def test_55_before_a_turn(cells, gone, tmp_path):
    cells.ask(says("Hello."))
    cells.run("%hermes new")
    cells.run("%hermes config vision auto")
    gone.rmdir()
    result = cells.ask(says("never"), ends="error")
    (line,) = result.error["traceback"]
    assert "the working directory has been deleted" in line and "%cd" in line
    assert cells.server.exchanges == []
    for command in ("%hermes status", "%hermes tools", "%hermes doctor", "%hermes help"):
        answer = cells.run(command)
        assert answer.status == "ok" or len(answer.error["traceback"]) == 1, command


@pytest.mark.kernel
def test_55_in_a_turn(cells, gone):
    cells.ask(
        calls(("run_python", {"code": f"import shutil; shutil.rmtree({str(gone)!r})"})),
        calls(
            ("terminal", {"command": "ls"}),
            ("write_file", {"path": "a.txt", "content": "x"}),
            ("read_file", {"path": "a.txt"}),
            ("list_files", {}),
            ("search_files", {"pattern": "x"}),
            ("run_python", {"code": "print(6 * 7)"}),
        ),
        says("It is gone."),
        options="--approve all",
    )
    told = cells.results[1:]
    assert len(told) == 6
    assert "42" in told[5], "code runs all the same"
    assert not any("Traceback" in each for each in told[:5])
    assert "delete" in told[0] or "no longer" in told[0] or "missing" in told[0]


def test_55_of_a_script(story, monkeypatch):
    monkeypatch.chdir(story.work)
    story.ask(says("Hello."))
    shutil.rmtree(story.work)
    turn = story.ask(
        calls(("terminal", {"command": "pwd"}), ("list_files", {})),
        calls(("write_file", {"path": "a.txt", "content": "x"})),
        says("It is gone."),
    )
    assert turn.text == "It is gone."
    assert not any("Traceback" in each for each in story.results)
    monkeypatch.undo()
    story.work.mkdir()


# 98: Without file locks memory and skills are saved; a line says at once what sessions need.
UNLOCKED = """
import json, os, sys, time
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.core.errors import StoreError
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from tests.faults.without_locks import without_locks
without_locks()
home = Path(os.environ["HERMES_HOME"])
skill = "---\\nname: draw\\ndescription: About drawing.\\n---\\n# How\\n"
steps = [
    call("memory", action="add", target="memory", content="The user likes penguins."),
    call("skill_manage", action="create", name="draw", content=skill),
    "one",
    "two",
]
hermes = Hermes(ScriptedModel(steps), cwd=home.parent, approve="all")
hermes.ask("first")
begun = time.monotonic()
store = SqliteStore(home / "notebook.db")
for call in (store.sessions, store.start, lambda: store.search("walrus")):
    try:
        call()
    except StoreError as error:
        print(error)
hermes.ask("second")
seconds = time.monotonic() - begun
warnings = list(hermes.warnings)
hermes.close()
print(json.dumps([[each.text for each in hermes.messages], warnings, seconds]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux itself answers without locks")
@pytest.mark.parametrize("before", [False, True])
def test_98_no_file_locks(home, before):
    if before:
        filled(home / "notebook.db")
        stored = (home / "notebook.db").read_bytes()
    *told, last = finished(run_python(UNLOCKED))
    texts, warnings, seconds = json.loads(last)
    assert [text for text in texts if text in ("first", "one", "second", "two")] == [
        *("first", "one", "second", "two")
    ]
    (warning,) = warnings
    assert "has no file locks; set HERMES_HOME to a folder on another disk" in warning
    assert len(told) == 3 and all(line in warning for line in told)
    assert seconds < 10  # without file locks it was 14 while SQLite waited for them
    assert read_memory(home, "memory") == ["The user likes penguins."]
    assert "About drawing." in (home / "skills" / "draw" / "SKILL.md").read_text(encoding="utf-8")
    if before:
        assert (home / "notebook.db").read_bytes() == stored


@pytest.mark.skipif(sys.platform != "linux", reason="Linux itself answers without locks")
def test_98_what_must_run_once_does_not_run(tmp_path):
    script = """
    import sys
    from pathlib import Path
    from hermes_nb.core.files import locked
    from tests.faults.without_locks import without_locks
    without_locks()
    for required in (False, True):
        try:
            with locked(Path(sys.argv[1]), required=required):
                print("runs")
        except OSError as error:
            print(error.strerror)
    """
    told = finished(run_python(script, tmp_path / "job"))
    assert told == ["runs", "No locks available"]
