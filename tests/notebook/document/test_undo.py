"""A turn's cells come back, and what the user did meanwhile or since stays."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from hermes_nb.agent.undo.checkpoints import Checkpoints, NothingToUndo
from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.tools import Place
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.notebook.commands import edits
from hermes_nb.notebook.commands.table import COMMANDS
from hermes_nb.notebook.document.document import (
    Cell,
    CellConflict,
    Delete,
    Insert,
    Move,
    NotebookDocument,
    Replace,
    SetOutputs,
    source_hash,
)
from hermes_nb.notebook.document.undo import CellKeeper, DocumentRestorer
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.utils.capture import capture_output

S, KEY = "session", "/work/notebook.ipynb"


async def redo(agent, words):
    """Run `%hermes redo`."""
    return await edits.redo(agent, COMMANDS["redo"].arguments(words))


async def undo(agent, words):
    """Run `%hermes undo`."""
    return await edits.undo(agent, COMMANDS["undo"].arguments(words))


async def diff(agent, words):
    """Run `%hermes diff`."""
    return await edits.diff(agent, COMMANDS["diff"].arguments(words))


class MemoryDocument(NotebookDocument):
    """A notebook in memory: ids are given, hashes are checked, outputs stay."""

    way = "the notebook in memory"

    def __init__(self, *sources: str) -> None:
        self._ids = count(1)
        self.held: list[Cell] = [self._new(source, "code", {}) for source in sources]

    def _new(self, source, kind, metadata) -> Cell:
        place = {"index": 0, "id": f"c{next(self._ids)}", "type": kind, "outputs": []}
        return Cell(**place, source=source, hash=source_hash(source), metadata=dict(metadata))

    def _at(self, cell_id: str, seen: str | None = None) -> int:
        for index, cell in enumerate(self.held):
            if cell.id == cell_id:
                if seen not in (None, cell.hash):
                    raise CellConflict(f"cell {cell_id} has been changed: {cell.source}")
                return index
        raise ToolError(f"there is no cell {cell_id}")

    async def cells(self, *, outputs=False):
        return [
            replace(cell, index=index, outputs=cell.outputs if outputs else None)
            for index, cell in enumerate(self.held)
        ]

    async def get(self, cell_id):
        return (await self.cells(outputs=True))[self._at(cell_id)]

    async def apply(self, edit):
        if isinstance(edit, Insert):
            where = len(self.held) if edit.index is None else edit.index
            where = self._at(edit.after) + 1 if edit.after is not None else where
            self.held.insert(where, self._new(edit.source, edit.type, edit.metadata))
            return self.held[where]
        index = self._at(edit.id, getattr(edit, "seen", None))
        cell = self.held[index]
        match edit:
            case Replace(_, source):
                self.held[index] = replace(cell, source=source, hash=source_hash(source))
            case Delete():
                del self.held[index]
                return None
            case Move(_, after):
                del self.held[index]
                self.held.insert(0 if after is None else self._at(after) + 1, cell)
                return cell
            case SetOutputs(_, outputs, count):
                self.held[index] = replace(cell, outputs=list(outputs), execution_count=count)
        return self.held[index]

    @property
    def sources(self) -> list[str]:
        return [cell.source for cell in self.held]

    @property
    def contents(self) -> list[tuple]:
        """Everything but the ids, which a cell that is inserted again cannot keep."""
        return [(c.type, c.source, c.outputs, c.execution_count, c.metadata) for c in self.held]

    def seen(self, cell_id) -> str:
        return self.held[self._at(cell_id)].hash


class Story:
    """A notebook, an agent that edits it within a turn, and its undo."""

    def __init__(self, folder, *sources: str) -> None:
        self.document: NotebookDocument = MemoryDocument(*sources)
        self.turn = 1
        self.checkpoints = Checkpoints(folder / "checkpoints")
        keeper = CellKeeper(self.checkpoints)
        self.agent = lambda: keeper.kept(self.document, KEY, Place(session=S, turn=self.turn))

    async def undo(self, **options):
        async def document(key):
            assert key == KEY
            return self.document

        return await self.checkpoints.undo(S, restorer=DocumentRestorer(document), **options)


@pytest.fixture
def story(tmp_path):
    return lambda *sources: Story(tmp_path, *sources)


def stream(text):
    return [{"output_type": "stream", "name": "stdout", "text": text}]


async def test_edits_inserts_deletes_and_moves_are_taken_back(story):
    told = story("a", "b", "c", "d")
    document = told.document
    await document.set_outputs("c3", stream("old"), execution_count=3)
    before = document.contents
    agent = told.agent()
    await agent.replace("c1", "a edited", seen=document.seen("c1"))
    new = await told.agent().insert("new", after="c1", metadata={"hermes": {"turn": 1}})
    await agent.set_outputs(new.id, stream("fresh"), execution_count=None)
    await agent.delete("c3", seen=document.seen("c3"))
    await agent.move("c4", after=None)
    await agent.set_outputs("c2", stream("ran"))
    assert document.sources == ["d", "a edited", "new", "b"]
    report = await told.undo()
    assert report.conflicts == ()
    assert document.contents == before
    assert [line.text for line in report.done] == [
        "cell 3 “new” removed",
        "cell 1 “a” restored",
        "cell 2 “b” has its outputs back",
        "[3] “c” brought back",
        "cell 4 “d” moved back",
    ]


async def test_what_the_user_changed_since_stays_and_is_named(story):
    told = story("a", "b", "c", "d")
    document, agent = told.document, told.agent()
    await agent.replace("c1", "a edited", seen=document.seen("c1"))
    await agent.replace("c2", "b edited", seen=document.seen("c2"))
    await agent.replace("c3", "c edited", seen=document.seen("c3"))
    await agent.set_outputs("c3", stream("agent's"))
    new = await agent.insert("new", after="c3")
    await document.replace("c1", "a mine", seen=document.seen("c1"))
    await document.replace(new.id, "new mine", seen=document.seen(new.id))
    await document.delete("c2", seen=document.seen("c2"))
    await document.set_outputs("c3", stream("mine"))
    await document.insert("only mine", index=0)
    report = await told.undo()
    assert document.sources == ["only mine", "a mine", "c", "new mine", "d"]
    assert document.held[2].outputs == stream("mine")
    assert [line.text for line in report.conflicts] == [
        "cell 4 “new” is new and has been changed since, so it stays",
        "cell 1 “a” has been changed since and was not restored",
        "cell 2 “b” has been deleted since",
        "cell 3 “c” has newer outputs, which stay",
    ]
    report = await told.undo(force=True)
    assert document.sources == ["only mine", "a", "c", "d"]
    assert len(report.conflicts) == 1


async def test_a_cell_that_the_user_moved_since_stays_there(story):
    told = story("a", "b", "c", "d")
    await told.agent().move("c1", after="c4")
    await told.document.move("c1", after="c2")
    assert "moved since" in (await told.undo()).conflicts[0].text
    assert told.document.sources == ["b", "a", "c", "d"]


async def test_what_the_user_writes_during_the_turn_is_what_undo_goes_back_to(story):
    told = story("a", "b", "c")
    document, agent = told.document, told.agent()
    await agent.insert("first", index=0)
    await document.replace("c2", "b mine", seen=document.seen("c2"))
    await agent.replace("c2", "b agent's", seen=document.seen("c2"))
    await agent.replace("c1", "a agent's", seen=document.seen("c1"))
    await document.replace("c1", "a mine", seen=document.seen("c1"))
    await agent.replace("c1", "a agent's again", seen=document.seen("c1"))
    await document.replace("c4", "first, mine now", seen=document.seen("c4"))
    await agent.delete("c4", seen=document.seen("c4"))
    report = await told.undo()
    assert document.sources == ["first, mine now", "a mine", "b mine", "c"]
    assert report.conflicts == ()


async def test_two_turns_are_undone_though_a_cell_came_back_under_another_id(story):
    told = story("a", "b")
    document = told.document
    await told.agent().replace("c1", "a edited", seen=document.seen("c1"))
    told.turn = 2
    await told.agent().delete("c1", seen=document.seen("c1"))
    assert (await told.undo()).conflicts == ()
    assert document.sources == ["a edited", "b"]
    assert (await told.undo()).conflicts == ()
    assert document.sources == ["a", "b"]


async def test_a_refused_edit_leaves_nothing_to_undo(story):
    told = story("a", "b")
    agent = told.agent()
    for edit in (
        agent.replace("c1", "x", seen="0"), agent.delete("c1", seen="0"),
        agent.get("nobody"), agent.move("nobody", after=None),
    ):  # fmt: skip
        with pytest.raises(ToolError):
            await edit
    report = await told.undo()
    assert (report.done, report.conflicts) == ((), ())
    assert told.document.sources == ["a", "b"]


async def test_outputs_that_were_read_cut_are_not_written_back(story):
    told = story("a", "b")
    document = told.document
    cut = [{"output_type": "stream", "name": "stdout", "text": "a", "hermes_clipped": 9}]
    await document.set_outputs("c1", cut)
    await document.set_outputs("c2", cut)
    await told.agent().set_outputs("c1", stream("new"))
    await told.agent().delete("c2", seen=document.seen("c2"))
    report = await told.undo()
    assert document.held[0].outputs == stream("new")
    assert [line.text.rpartition("”")[2] for line in report.done] == [
        " keeps its outputs: the old ones were too large to save",
        " brought back",
        " has lost its outputs, which were too large to save",
    ]


actions = st.tuples(
    st.sampled_from(["replace", "insert", "delete", "move", "outputs"]),
    st.integers(0, 9),
    st.integers(-1, 9),
    st.sampled_from(["code", "markdown"]),
)


async def act(document, held, action, text):
    """Do something to a notebook; return what it was done to."""
    what, which, where, kind = action
    ids = [cell.id for cell in held.held]
    if what == "insert" or not ids:
        after = ids[where % len(ids)] if ids and where >= 0 else None
        place = {"after": after} if after else {"index": 0}
        return (await document.insert(text, **place, type=kind, metadata={"m": text})).id
    cell_id = ids[which % len(ids)]
    if what == "replace":
        await document.replace(cell_id, text, seen=held.seen(cell_id))
    elif what == "delete":
        await document.delete(cell_id, seen=held.seen(cell_id))
    elif what == "move":
        after = ids[where % len(ids)] if where >= 0 else None
        if after != cell_id:
            await document.move(cell_id, after=after)
    else:
        await document.set_outputs(cell_id, stream(text), execution_count=which)
    return cell_id


@given(st.integers(0, 5), st.lists(actions, min_size=1, max_size=8))
@settings(max_examples=60)
def test_undo_and_redo_give_both_states_when_the_user_did_nothing(tmp_path_factory, size, edits):
    async def main(folder):
        told = Story(folder, *(f"original {n}" for n in range(size)))
        for n in range(size):
            await told.document.set_outputs(f"c{n + 1}", stream(f"out {n}"), execution_count=n)
        before = told.document.contents
        for n, edit in enumerate(edits):
            await act(told.agent(), told.document, edit, f"agent {n}")
        after = told.document.contents
        try:
            report = await told.undo()
        except NothingToUndo:  # only moves of a cell to where it was
            assert told.document.contents == before
            return
        assert report.conflicts == ()
        assert told.document.contents == before
        for state in (after, before, after):
            report = await told.undo(redo=state is after)
            assert report.conflicts == ()
            assert _sound(told.document.contents) == _sound(state)

    asyncio.run(main(tmp_path_factory.mktemp("undo")))


def _sound(contents):
    """Return the contents without outputs of Markdown cells, which have none in a notebook."""
    return [each if each[0] == "code" else (*each[:2], [], None, each[4]) for each in contents]


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), actions), min_size=1, max_size=10))
@settings(max_examples=60)
def test_undo_never_loses_what_the_user_wrote(tmp_path_factory, size, edits):
    """In the middle of the turn or after it: a text of the user's is there unless they took it."""

    async def main(folder):
        told = Story(folder, *(f"original {n}" for n in range(size)))
        document = told.document
        owned: dict[str, str] = {f"c{n + 1}": f"original {n}" for n in range(size)}
        for n, (mine, edit) in enumerate(edits):
            text = f"{'mine' if mine else 'agent'} {n}"
            cell_id = await act(document if mine else told.agent(), document, edit, text)
            if mine:
                there = {cell.id: cell.source for cell in document.held}
                owned.pop(cell_id, None)
                if there.get(cell_id, "").startswith("mine"):
                    owned[cell_id] = there[cell_id]
        mine_now = [cell.source for cell in document.held if cell.source.startswith("mine")]
        with suppress(NothingToUndo):
            await told.undo()
        for text in (*mine_now, *(text for text in owned.values() if text.startswith("mine"))):
            assert text in document.sources

    asyncio.run(main(tmp_path_factory.mktemp("undo")))


@pytest.fixture
def agent(shell, story, tmp_path):
    """Yield as much of an agent as the commands ask, and the story of its notebook."""
    told, store = story("a", "<b>`x`</b>"), SqliteStore(tmp_path / "notebook.db")

    async def document():
        return told.agent()

    access, session = SimpleNamespace(checkpoints=told.checkpoints), SimpleNamespace(id=S)
    yield SimpleNamespace(
        told=told,
        store=store,
        access=access,
        session=session,
        notebook=KEY,
        document=document,
        shell=shell,
        guests={},
    )
    store.close()


async def test_the_commands_show_safe_markdown(shell, agent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = agent.told
    await told.agent().replace("c1", "```\n<script>", seen=told.document.seen("c1"))
    await told.agent().replace("c2", "y", seen=told.document.seen("c2"))
    told.checkpoints.note(S, 1, "terminal ran code; its effects are not undone")
    path = (tmp_path / "<i>`.txt").resolve()
    told.checkpoints.before(S, 1, [path])
    path.write_text("new\n", encoding="utf-8")
    told.checkpoints.after(S, 1, [path])
    await told.document.replace("c1", "mine", seen=told.document.seen("c1"))
    with capture_output() as captured:
        assert await diff(agent, "") == ""
    html, markdown, plain = captured.outputs[0].data.values()
    assert "```diff\n- a\n+ ```\n+ <script>\n````" in markdown and "+ <script>" in plain
    assert "&lt;script&gt;" in html and "<script>" not in html
    assert "<i>`.txt added" in plain and "<i>" not in html + markdown
    text = await undo(agent, "1")
    assert "**Turn 1**" in text and "is undone" in text
    assert "- <code>&lt;i&gt;&#96;.txt</code> removed" in text
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert "`%hermes undo --force` overwrites" in text
    assert "terminal ran code" in text
    assert "Variables keep their current values." in text
    assert told.document.sources == ["mine", "<b>`x`</b>"]
    await undo(agent, "--force 1")
    assert told.document.sources == ["a", "<b>`x`</b>"]
    assert not path.exists()
    # The undo itself was not saved as something the turn did.
    with pytest.raises(NothingToUndo):
        await undo(agent, "")
    for words in ("one", "1 2", "-1", "--hard"):
        with pytest.raises(ConfigError, match=r"not understood|not a number|no option"):
            await undo(agent, words)


async def test_what_was_taken_back_in_the_page_needs_no_undo(agent):
    told = agent.told
    await told.agent().replace("c1", "b", seen=told.document.seen("c1"))
    await told.document.replace("c1", "a", seen=told.document.seen("c1"))
    assert "nothing to undo, files and cells are as they were before it" in await undo(agent, "")
    with pytest.raises(NothingToUndo, match="already undone"):
        await undo(agent, "")


async def test_cells_of_another_notebook_stay_and_after_a_restart_its_last_session_is_meant(agent):
    told, agent.notebook = agent.told, "/work/other.ipynb"
    await told.agent().replace("c1", "b", seen=told.document.seen("c1"))
    assert "another notebook" in await undo(agent, "")
    told.turn = 2
    await told.agent().replace("c1", "c", seen=told.document.seen("c1"))
    agent.session, agent.notebook = None, KEY
    assert "has changed nothing" in await undo(agent, "")
    agent.store.start(notebook=KEY, session_id=S)
    assert told.document.sources[0] == "c"
    await undo(agent, "")
    assert told.document.sources[0] == "b"


async def test_redo_follows_the_last_undo_and_leaves_later_changes_alone(shell, agent, tmp_path):
    told, document = agent.told, agent.told.document
    path = (tmp_path / "made.txt").resolve()
    for turn, text in ((1, "b"), (2, "c")):
        told.turn = turn
        await told.agent().replace("c1", text, seen=document.seen("c1"))
        told.checkpoints.before(S, turn, [path])
        path.write_text(text, encoding="utf-8")
        told.checkpoints.after(S, turn, [path])
    with pytest.raises(NothingToUndo, match="no turn is undone"):
        await redo(agent, "")
    await undo(agent, "--to 0")
    assert (document.sources[0], path.exists()) == ("a", False)
    text = await redo(agent, "")
    assert "**Turn 1**" in text and "is redone:" in text
    assert (document.sources[0], path.read_text(encoding="utf-8")) == ("b", "b")
    with pytest.raises(NothingToUndo, match="turn 1 is not undone"):
        await redo(agent, "1")
    path.write_text("mine", encoding="utf-8")
    await document.replace("c1", "mine", seen=document.seen("c1"))
    text = await redo(agent, "")
    assert "**Turn 2**" in text and "nothing was redone" in text
    assert "`%hermes redo --force` overwrites" in text
    assert (document.sources[0], path.read_text(encoding="utf-8")) == ("mine", "mine")
    await redo(agent, "2 --force")
    assert (document.sources[0], path.read_text(encoding="utf-8")) == ("c", "c")
    assert "nothing was undone" not in await undo(agent, "")
    assert (document.sources[0], path.read_text(encoding="utf-8")) == ("b", "b")
