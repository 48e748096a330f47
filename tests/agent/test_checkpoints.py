"""What a turn changed comes back, and nothing that somebody else wrote is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hermes_nb.agent.undo.changes import cell_changes, file_change, rows, shown_path, summary
from hermes_nb.agent.undo.checkpoints import Checkpoints, NothingToUndo, checkpointed
from hermes_nb.agent.undo.records import (
    CellsItem,
    FileItem,
    FileState,
    SessionIndex,
    TurnRecord,
    dumps,
    loads,
)
from hermes_nb.agent.undo.undo import CellsRestored, VariablesRestored
from hermes_nb.core.errors import HermesError, ToolError
from hermes_nb.core.tools import Place, Risk, Toolset
from hermes_nb.tools.files import files
from hermes_nb.tools.schema import tool
from hermes_nb.tools.terminal import terminal
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patience import until
from tests.tools.support import context_for, run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
S = "20261121-aaaa"


@pytest.fixture
def work(tmp_path):
    folder = Path(os.path.realpath(tmp_path)) / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def saved(home):
    return Checkpoints(home / "checkpoints")


def undo(saved, turn=None, session=S, **options):
    return asyncio.run(saved.undo(session, turn, **options))


def write(saved, path, data, turn=1, session=S):
    """Change a file as a tool does; None deletes it."""
    saved.before(session, turn, [path])
    if data is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    saved.after(session, turn, [path])


def texts(lines):
    return [(Path(line.name).name, line.text) for line in lines]


def blobs(home):
    return list((home / "checkpoints" / "blobs").iterdir())


def lines(changes):
    return [f"{row.mark} {row.text}" for change in changes for row in rows(change)]


def test_changed_created_and_deleted_files_come_back_and_the_diff_shows_them(saved, work):
    old = {"a.txt": b"one\ntwo\n", "b.bin": bytes(range(256)) * 50, "gone.txt": b"end"}
    for name, data in old.items():
        (work / name).write_bytes(data)
        (work / name).chmod(0o740)
    write(saved, work / "a.txt", b"one\ndos\n")
    write(saved, work / "a.txt", b"one\nzwei\n")
    write(saved, work / "b.bin", b"\0\1\2")
    write(saved, work / "new" / "deep" / "c.txt", b"hello\n")
    write(saved, work / "gone.txt", None)
    changes = saved.changes(S, root=work)
    assert summary(changes) == [
        *("new/deep/c.txt added +1", "a.txt +1 −1", "b.bin edited", "gone.txt removed −1")
    ]
    assert lines(changes) == ["  one", "- two", "+ zwei", "+ hello", "- end"]
    assert changes[1].note == "binary or large, not compared: 12,800 bytes → 3 bytes"
    report = undo(saved)
    assert {p.name: p.read_bytes() for p in work.iterdir()} == old
    assert stat.S_IMODE((work / "gone.txt").stat().st_mode) == 0o740
    assert report.conflicts == ()
    assert texts(report.done) == [
        *(("a.txt", "restored"), ("b.bin", "restored")),
        *(("c.txt", "removed"), ("gone.txt", "brought back")),
    ]
    assert saved.changes(S, 1, root=work) == changes


def test_modes_stay_and_a_later_chmod_too(saved, work):
    for name, later in (("script", None), ("other", 0o711)):
        path = work / name
        path.write_bytes(b"old")
        path.chmod(0o750)
        saved.before(S, 1, [path])
        path.write_bytes(b"new")
        path.chmod(0o600)
        saved.after(S, 1, [path])
        if later:
            path.chmod(later)
    undo(saved)
    assert stat.S_IMODE((work / "script").stat().st_mode) == 0o750
    assert stat.S_IMODE((work / "other").stat().st_mode) == 0o711
    assert (work / "other").read_bytes() == b"old"


def test_what_was_changed_since_stays_unless_forced(saved, work):
    path, other = work / "a", work / "b"
    path.write_bytes(b"one")
    other.write_bytes(b"1")
    write(saved, path, b"two")
    write(saved, other, b"2")
    write(saved, work / "new", b"new")
    path.write_bytes(b"mine")
    (work / "new").write_bytes(b"mine too")
    report = undo(saved)
    assert path.read_bytes() == b"mine"
    assert (work / "new").read_bytes() == b"mine too"
    assert other.read_bytes() == b"1"
    assert [name for name, _ in texts(report.conflicts)] == ["a", "new"]
    with pytest.raises(NothingToUndo, match="already undone"):
        undo(saved)
    other.write_bytes(b"mine since")
    report = undo(saved, force=True)
    assert path.read_bytes() == b"one"
    assert other.read_bytes() == b"mine since", "the first time has undone it already"
    assert not (work / "new").exists()
    assert report.conflicts == ()
    with pytest.raises(NothingToUndo):
        undo(saved, force=True)


def test_a_change_in_the_middle_of_a_turn_is_what_undo_goes_back_to(saved, work):
    path = work / "a"
    path.write_bytes(b"one")
    write(saved, path, b"two")
    path.write_bytes(b"mine")
    write(saved, path, b"three")
    report = undo(saved)
    assert path.read_bytes() == b"mine"
    assert "changed by something else" in report.notes[0]


def test_turns_are_undone_one_after_the_other_or_by_number(saved, work):
    path = work / "a"
    path.write_bytes(b"0")
    for turn in (1, 2, 3):
        write(saved, path, str(turn).encode(), turn)
        write(saved, work / f"only{turn}", b"x", turn)
    assert undo(saved).turn == 3
    assert path.read_bytes() == b"2"
    report = undo(saved, 1)
    assert texts(report.done) == [("only1", "removed")]
    assert texts(report.conflicts)[0][0] == "a"
    assert undo(saved).turn == 2
    assert path.read_bytes() == b"1"
    with pytest.raises(NothingToUndo, match="turn 3 is already undone"):
        undo(saved, 3)
    with pytest.raises(NothingToUndo, match="no turn 9 that has changed"):
        undo(saved, 9)
    with pytest.raises(NothingToUndo, match="no turn of this session"):
        undo(saved, session="other")


def test_a_turn_with_the_number_of_another_is_a_turn_of_its_own(home, saved, work):
    """After an undo, and in another process: that may have counted the turns differently."""
    path = work / "a"
    path.write_bytes(b"0")
    write(saved, path, b"1", turn=4)
    undo(saved)
    write(saved, path, b"1", turn=4)
    again = Checkpoints(home / "checkpoints")
    write(again, path, b"2", turn=4)
    for left in (b"1", b"0"):
        undo(Checkpoints(home / "checkpoints"))
        assert path.read_bytes() == left


def test_only_the_owner_may_read_it(saved, home, work):
    write(saved, work / "a", b"secret")
    for path in (home, *home.rglob("*")):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_links_pipes_and_directories_in_a_files_place_are_left_alone(saved, work, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"not yours")
    (work / "d").mkdir()
    (work / "d" / "a").write_bytes(b"one")
    write(saved, work / "d" / "a", b"not yours")
    for name in "bcp":
        write(saved, work / name, b"created")
        (work / name).unlink()
    (work / "d" / "a").unlink()
    (work / "d").rmdir()
    (work / "d").symlink_to(outside)
    (work / "b").symlink_to(outside / "a")
    (work / "c").mkdir()
    os.mkfifo(work / "p")
    for force in (False, True):
        report = undo(saved, 1, force=force)
        assert (outside / "a").read_bytes() == b"not yours"
        assert (work / "b").is_symlink() and (work / "c").is_dir() and (work / "p").is_fifo()
        link = "cannot be restored: it is behind a symbolic link"
        assert [name for name, text in texts(report.conflicts) if text == link] == ["a", "b"]
        assert len(report.conflicts) == 4


def test_a_huge_file_is_not_saved_and_the_report_says_so(home, work):
    saved = Checkpoints(home / "checkpoints", file_bytes=1000)
    path = work / "big"
    path.write_bytes(os.urandom(5000))
    write(saved, path, b"small now")
    report = undo(saved, force=True)
    assert path.read_bytes() == b"small now"
    assert "was not saved" in report.conflicts[0].text
    assert sum(p.stat().st_size for p in blobs(home)) < 1000


def test_the_oldest_turns_make_room_and_a_turn_alone_may_be_too_much(home, work):
    folder = home / "checkpoints"
    saved = Checkpoints(folder, limit_bytes=30_000)
    path = work / "a"
    path.write_bytes(b"start")
    for turn in range(1, 13):
        write(saved, path, os.urandom(4000), turn, session=f"s{turn % 3}")
        assert sum(p.stat().st_size for p in blobs(home)) <= 30_000
    assert undo(saved, session="s0").done
    with pytest.raises(NothingToUndo):
        undo(saved, 1, session="s1")
    write(saved, work / "much", os.urandom(40_000), 20)
    write(saved, work / "much", b"less", 21)
    report = undo(saved, 21)
    assert "space for checkpoints is full" in report.conflicts[0].text
    assert (work / "much").read_bytes() == b"less"


def test_only_so_many_turns_are_kept_and_nothing_else_is_left(home, work):
    folder = home / "checkpoints"
    saved = Checkpoints(folder, keep_turns=3)
    for turn in range(1, 9):
        write(saved, work / "a", f"{turn}".encode() * 100, turn)
    known = json.loads((folder / f"{S}.json").read_bytes())
    assert [each["turn"] for each in known["turns"]] == [6, 7, 8]
    assert len(blobs(home)) == 4
    (folder / "blobs" / ".left.hermes-tmp").write_bytes(b"half")
    write(saved, work / "a", b"9", 9)
    assert not list(folder.rglob("*.hermes-tmp"))


@pytest.mark.parametrize("name", ["../../escape", "", "a/b", "ü\ud800", "x" * 300, ".hidden"])
def test_a_session_of_any_name_stays_in_the_folder(saved, home, work, name):
    (work / "a").write_bytes(b"1")
    write(saved, work / "a", b"2", session=name)
    assert {p.parent.name for p in home.rglob("*.json")} == {"checkpoints"}
    undo(saved, session=name)
    assert (work / "a").read_bytes() == b"1"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"null", b'{"version": 99}', b'{"version": 1, "turns": [1]}', b"\xff"],
)
def test_a_damaged_index_costs_the_undo_and_nothing_more(saved, home, work, damage):
    write(saved, work / "a", b"1")
    (home / "checkpoints" / f"{S}.json").write_bytes(damage)
    with pytest.raises(NothingToUndo):
        undo(saved)
    write(saved, work / "a", b"2", 2)
    undo(saved)
    assert (work / "a").read_bytes() == b"1"


def test_a_damaged_copy_is_said_and_not_written(saved, home, work):
    path = work / "a"
    path.write_bytes(b"one")
    write(saved, path, b"two")
    for blob in blobs(home):
        blob.write_bytes(b"rubbish")
    report = undo(saved)
    assert path.read_bytes() == b"two"
    assert "damaged" in report.conflicts[0].text
    assert "damaged" in saved.changes(S)[0].note


def test_a_folder_that_cannot_be_used_fails_no_tool(home, work):
    home.mkdir()
    (home / "checkpoints").write_text("a file", encoding="utf-8")
    saved = Checkpoints(home / "checkpoints")
    write(saved, work / "a", b"1")
    assert (work / "a").read_bytes() == b"1"
    with pytest.raises(NothingToUndo, match="checkpoint could not be saved"):
        undo(saved)


def cell(cell_id, source, **more):
    fields = {"id": cell_id, "type": "code", "source": source, "metadata": {}, "outputs": []}
    return {**fields, "execution_count": None, **more}


class Recorder:
    """A restorer that remembers what it was asked, and answers as it is told."""

    def __init__(self, **answer):
        self.asked = []
        self.answer = answer

    async def restore_cells(self, document, before, after, *, force=False):
        self.asked.append((document, before, after, force))
        return CellsRestored(**self.answer)

    def restore_variables(self, session, turn, *, force=False, redo=False):
        return VariablesRestored()


def test_cells_go_through_the_restorer_with_their_files(saved, work):
    before = [cell("a", "x = 1"), cell("b", "\ud800é", outputs=[{"output_type": "stream"}])]
    after = [cell("a", "x = 2"), cell("n", "new"), before[1]]
    write(saved, work / "f", b"1")
    saved.save_cells(S, 1, "/w/n.ipynb", before, before)
    saved.save_cells(S, 1, "/w/n.ipynb", before, after)
    changes = saved.changes(S, root=Path("/w"))
    assert lines(changes) == ["+ 1", "- x = 1", "+ x = 2", "+ new"]
    assert summary(changes)[:2] == ["cell 2 added", "cell 1 edited"]
    refused = Recorder(conflicts=("cell a has been changed",))
    report = undo(saved, restorer=refused)
    assert refused.asked == [("/w/n.ipynb", before, after, False)]
    assert texts(report.conflicts) == [("n.ipynb", "cell a has been changed")]
    willing = Recorder(done=("cell a restored",))
    report = undo(saved, restorer=willing, force=True)
    assert willing.asked[0][3] is True
    assert texts(report.done) == [("n.ipynb", "cell a restored")]
    with pytest.raises(NothingToUndo):
        undo(saved, restorer=willing, force=True)


def test_a_cell_that_was_brought_back_is_known_by_its_new_id(saved):
    first = [cell("a", "1"), cell("b", "2")]
    saved.save_cells(S, 1, "n", first, [cell("a", "one"), first[1]])
    saved.save_cells(S, 2, "n", [cell("a", "one"), first[1]], [first[1]])
    undo(saved, restorer=Recorder(renamed={"a": "z"}))
    restorer = Recorder()
    undo(saved, restorer=restorer)
    _, before, after, _ = restorer.asked[0]
    assert [each["id"] for each in (*before, *after)] == ["z", "b", "z", "b"]


def test_without_a_restorer_or_a_notebook_the_cells_are_a_conflict(saved):
    class Unreachable:
        async def restore_cells(self, document, before, after, *, force=False):
            raise ToolError("the notebook is out of reach")

        def restore_variables(self, session, turn, *, force=False, redo=False):
            return VariablesRestored()

    saved.save_cells(S, 1, "n", [cell("a", "1")], [cell("a", "2")])
    assert "in a notebook" in undo(saved).conflicts[0].text
    assert "out of reach" in undo(saved, force=True, restorer=Unreachable()).conflicts[0].text


def test_outputs_that_are_too_large_are_left_out_and_cells_without_room_are_named(home):
    saved = Checkpoints(home / "checkpoints", file_bytes=2000, limit_bytes=20_000)
    large = [{"output_type": "stream", "text": "x" * 5000}]
    saved.save_cells(S, 1, "n", [cell("a", "1", outputs=large)], [cell("a", "2")])
    restorer = Recorder()
    undo(saved, restorer=restorer)
    assert restorer.asked[0][1] == [cell("a", "1", outputs=None)]
    source = os.urandom(30_000).hex()
    saved.save_cells(S, 2, "/w/n.ipynb", [cell("a", "1")], [cell("a", source)])
    assert undo(saved).notes == (
        "the cells of n.ipynb were not saved: the space for checkpoints is full",
    )


def test_outputs_are_kept_once_however_often_the_sheet_changes(saved, home):
    outputs = [{"output_type": "stream", "text": os.urandom(50_000).hex()}]
    before = [cell("a", "0", outputs=outputs), cell("b", "0", outputs=list(outputs))]
    for n in range(10):
        after = [cell("a", str(n), outputs=outputs), before[1]]
        saved.save_cells(S, 1, "n", before, after)
    assert sum(p.stat().st_size > 10_000 for p in blobs(home)) == 1
    restorer = Recorder()
    undo(saved, restorer=restorer)
    assert restorer.asked == [("n", before, after, False)]
    saved.note(S, 2, "the next turn sweeps")
    assert len(blobs(home)) == 3


def test_two_processes_write_one_session_side_by_side(home, work):
    code = f"""
import sys
from pathlib import Path
from hermes_nb.agent.undo.checkpoints import Checkpoints
saved = Checkpoints(Path({str(home / "checkpoints")!r}))
for turn in range(1, 11):
    path = Path({str(work)!r}) / f"{{sys.argv[1]}}{{turn}}"
    saved.before("s", turn, [path])
    path.write_text("x" * turn)
    saved.after("s", turn, [path])
"""
    running = [subprocess.Popen([sys.executable, "-c", code, name], cwd=ROOT) for name in "ab"]
    assert [each.wait(timeout=60) for each in running] == [0, 0]
    saved = Checkpoints(home / "checkpoints")
    for _ in range(20):
        assert undo(saved, session="s").conflicts == ()
    assert list(work.iterdir()) == []


def test_threads_write_one_turn_side_by_side(saved, work):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write(saved, work / str(n), b"x"), range(8)))
    assert len(undo(saved).done) == 8
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("delay", [0.02, 0.25])
def test_killed_in_the_middle_it_stays_readable(home, work, delay):
    path = work / "a"
    path.write_text("start", encoding="utf-8")
    code = f"""
from pathlib import Path
from hermes_nb.agent.undo.checkpoints import Checkpoints
saved = Checkpoints(Path({str(home / "checkpoints")!r}), limit_bytes=20_000)
path = Path({str(path)!r})
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    saved.before("s", turn, [path])
    path.write_text(f"{{turn}} " * 900)
    saved.after("s", turn, [path])
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout.readline() == b"ready\n"
    assert until((home / "checkpoints" / "s.json").exists)
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    index = loads((home / "checkpoints" / "s.json").read_bytes())
    assert index.turns
    there = {p.name for p in blobs(home)}
    assert {digest for turn in index.turns for digest in turn.digests()} <= there
    saved = Checkpoints(home / "checkpoints", limit_bytes=20_000)
    report = undo(saved, session="s", force=True)
    number = report.turn
    assert path.read_text(encoding="utf-8") == ("start" if number == 1 else f"{number - 1} " * 900)


@pytest.mark.parametrize("changes", [0, 1])
def test_a_file_that_was_being_changed_is_restored_only_by_force(saved, work, changes):
    path = work / "a"
    path.write_bytes(b"one")
    for _ in range(changes):
        write(saved, path, b"two")
    saved.before(S, 1, [path])
    path.write_bytes(b"half")
    assert "is unknown" in saved.changes(S)[0].note
    assert "when the process ended" in undo(saved).conflicts[0].text
    assert undo(saved, force=True).conflicts == ()
    assert path.read_bytes() == b"one"


contents = st.none() | st.binary(max_size=20)
steps = st.lists(st.tuples(st.sampled_from("abc"), contents, st.booleans()), max_size=12)


@given(steps)
@settings(max_examples=40)
def test_whatever_happens_undo_gives_the_start_or_what_the_user_wrote(steps):
    """Each step is a file, its new content, and whether it was the agent.

    Somebody who writes the very bytes that the agent left has, for all one can see, not written.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(os.path.realpath(name))
        saved = Checkpoints(root / "checkpoints")
        files = {letter: root / letter for letter in "abc"}
        files["a"].write_bytes(b"at the start")
        base, left = {}, {}
        for letter, data, agent in steps:
            path = files[letter]
            if agent:
                if letter not in left or left[letter] != content(path):
                    base[letter] = content(path)
                left[letter] = data
                saved.before(S, 1, [path])
            if data is not None:
                path.write_bytes(data)
            elif path.exists():
                path.unlink()
            if agent:
                saved.after(S, 1, [path])
        now = {letter: content(path) for letter, path in files.items()}
        agents = {k for k in left if left[k] == now[k]}
        expected = {k: base[k] if k in agents else now[k] for k in files}
        try:
            undo(saved)
        except NothingToUndo:
            assert not left
        assert {letter: content(path) for letter, path in files.items()} == expected


def content(path):
    return path.read_bytes() if path.exists() else None


words = st.text(max_size=8)
states = st.builds(
    FileState,
    kind=st.sampled_from(["absent", "file", "large", "odd"]),
    digest=words,
    mode=st.integers(0, 0o7777),
    size=st.integers(0),
    why=words,
    saved=st.booleans(),
)
items = st.builds(
    FileItem,
    before=states,
    after=st.none() | states,
    folders=st.lists(words).map(tuple),
    undone=st.booleans(),
)
notebooks = st.builds(
    CellsItem, before=words, after=words, outputs=st.lists(words).map(tuple), undone=st.booleans()
)
turns = st.builds(
    TurnRecord,
    number=st.integers(),
    turn=st.integers(),
    when=st.floats(allow_nan=False, allow_infinity=False),
    state=st.sampled_from(["", "undone", "partly"]),
    files=st.dictionaries(words, items, max_size=3),
    cells=st.dictionaries(words, notebooks, max_size=3),
    notes=st.lists(words, max_size=3),
)


@given(
    st.builds(
        SessionIndex, turns=st.lists(turns, max_size=3), renamed=st.dictionaries(words, words)
    )
)
def test_an_index_is_what_it_was_after_json(index):
    assert loads(dumps(index)) == index


def test_the_tools_save_what_they_change_and_say_what_they_cannot(saved, work):
    (work / "a.txt").write_text("one\n", encoding="utf-8")
    (work / "link.txt").symlink_to("a.txt")

    @tool(risk=Risk.WRITE, paths=("path",))
    async def later(path: str) -> str:
        """Write asynchronously."""
        (work / path).write_text("later", encoding="utf-8")
        return "ok"

    tools = checkpointed(files(work) + terminal(work) + Toolset([later]), saved, work)

    def call(name, **arguments):
        tool = tools.get(name)
        within = context_for(tool, place=Place(session=S, turn=7))
        return run(tool, within=within, **arguments)

    call("write_file", path="sub/new.txt", content="x")
    call("patch", path="link.txt", old="one", new="two")
    call("later", path="async.txt")
    call("terminal", command="echo hi > shell.txt")
    call("read_file", path="a.txt")
    with pytest.raises(ToolError, match="was not found"):
        call("patch", path="a.txt", old="nonsense", new="x")
    with pytest.raises(ToolError, match="outside"):
        call("write_file", path="../outside.txt", content="x")
    report = undo(saved)
    assert report.turn == 7
    assert (work / "a.txt").read_text(encoding="utf-8") == "one\n"
    assert sorted(p.name for p in work.iterdir()) == ["a.txt", "link.txt", "shell.txt"]
    assert report.notes == ("terminal ran code; its effects are not undone",)
    assert report.conflicts == ()


def test_reading_without_a_folder_makes_none(saved, home):
    with pytest.raises(HermesError):
        saved.changes(S)
    assert not home.exists()


# A turn's changes, by the names that its user knows


def test_a_cell_is_called_by_its_number_or_by_its_place():
    before = [cell("a", "x"), {**cell("b", "y"), "execution_count": 7}]
    after = [{**cell("b", "z"), "execution_count": 8}, *(cell(new, new) for new in "cde")]
    changes = cell_changes("n.ipynb", before, after)
    assert summary(changes) == ["cells 2–4 added", "[8] edited", "cell 1 removed"]


def test_new_outputs_and_moves_are_told():
    before = [cell("a", "x"), cell("b", "y")]
    after = [cell("b", "y"), cell("a", "x", outputs=[{"output_type": "stream"}])]
    assert summary(cell_changes("n", before, after)) == ["cell 2 run", "cells moved"]


def test_what_is_far_from_a_difference_is_left_out_and_words_that_differ_are_marked():
    before = "\n".join([*"abcdef", "total = df['kg'].astype(float)", *"ghijkl", ""])
    after = before.replace("astype(float)", "astype(int)").encode()
    change = file_change("a.py", before.encode(), after)
    assert lines([change]) == [
        *("⋯ 4 lines as before", "  e", "  f"),
        *("- total = df['kg'].astype(float)", "+ total = df['kg'].astype(int)"),
        *("  g", "  h", "⋯ 4 lines as before"),
    ]
    marked = [word for row in rows(change) for word, differs in row.words if differs]
    assert marked == ["float", "int"]


@given(st.text("ab\n", max_size=8), st.text("ab\n", max_size=8))
def test_there_are_lines_for_whatever_changed(old, new):
    changes = cell_changes("n", [cell("a", old)], [cell("a", new)])
    assert bool(lines(changes)) == (old != new)
    changed = file_change("f", old.encode(), new.encode())
    assert bool(changed and rows(changed)) == (old != new)


def test_paths_are_shown_from_the_folder_one_is_in(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert shown_path(str(folder / "a" / "n.ipynb"), link) == "a/n.ipynb"
    assert shown_path(str(link / "n.ipynb"), folder) == "n.ipynb"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shown_path(str(link / "n.ipynb"), Path("/elsewhere")) == "~/folder/n.ipynb"
    assert shown_path("/opt/data.csv", folder) == "/opt/data.csv"
