"""A store that comes and goes costs nobody a turn, and in the end has every row."""

from __future__ import annotations

from hermes_nb.agent.session.recorder import Recorder
from hermes_nb.agent.session.session import Identity, Session, SessionSpec
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import ContextCompressed, MessageAdded, TurnEnded, UsageReported
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.tools import Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call

from tests.conftest import take_turn


class Flaky(SqliteStore):
    """A store whose disk is full while `full` says so."""

    full = False
    attempts = 0

    def append(self, session_id, message, *, usage=None):
        self.attempts += 1
        if self.full:
            raise StoreError("no space left on device")
        super().append(session_id, message, usage=usage)


def test_what_the_store_refuses_is_written_when_it_is_back(tmp_path):
    store = Flaky(tmp_path / "n.db")
    warnings = []
    session = store.start()
    recorder = Recorder(store, session, warnings.append)
    store.full = True
    for n in range(5):
        recorder(MessageAdded(Message.user(str(n))))
    assert store.attempts == 1
    assert recorder.unsaved == 5
    recorder(TurnEnded("answered"))
    assert len(warnings) == 1
    store.full = False
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    assert [message.text for message in store.messages(session)] == list("01234")
    store.close()


def test_a_resumed_session_sends_the_same_bytes_again(tmp_path):
    store = SqliteStore(tmp_path / "n.db")
    session = Session.start(
        store=store,
        spec=SessionSpec(model=ScriptedModel([call("nothing"), "one"]), tools=Toolset()),
        identity=Identity(),
        warn=print,
    )
    take_turn(session.agent, "first")
    before = session.agent.messages
    resumed = Session.resume(
        store.get(session.id),
        store=store,
        spec=SessionSpec(model=ScriptedModel(["two"]), tools=Toolset()),
        warn=print,
    )
    assert resumed.agent.messages == before
    assert resumed.agent.system == session.agent.system
    store.close()


def test_a_session_that_could_not_begin_is_saved_from_its_beginning(tmp_path):
    blocked = tmp_path / "home"
    blocked.write_text("a file", encoding="utf-8")
    store, warnings = SqliteStore(blocked / "n.db"), []
    recorder = Recorder(store, "s", warnings.append)
    recorder.begin(title="the walrus", system_prompt="p")
    recorder(MessageAdded(Message.user("one")))
    recorder(TurnEnded("answered"))
    assert len(warnings) == 1 and recorder.unsaved == 2
    blocked.unlink()
    recorder(TurnEnded("answered"))
    assert (store.get("s").title, store.get("s").system_prompt) == ("the walrus", "p")
    assert [message.text for message in store.messages("s")] == ["one"]
    store.close()


def test_a_compression_is_stored_and_its_undo_is_no_second_one(tmp_path):
    store = SqliteStore(tmp_path / "n.db")
    recorder = Recorder(store, "s", print)
    recorder.begin(system_prompt="before")
    messages = [Message.user(str(n)) for n in range(5)]
    for message in messages:
        recorder(MessageAdded(message))
    short = (messages[0], Message.user("summary"), messages[4])
    recorder(ContextCompressed(short, 5, 3, system="after"))
    assert store.messages("s") == list(short)
    assert store.get("s").system_prompt == "after"
    restored = store.restore("s")
    recorder(ContextCompressed(tuple(restored), 3, 5, phase="restored"))
    assert store.messages("s") == messages
    assert store.get("s").system_prompt == "before"
    assert store.restore("s") is None
    store.close()


def test_what_a_request_used_is_counted_with_its_answer_or_without_one(tmp_path):
    store = SqliteStore(tmp_path / "n.db")
    recorder = Recorder(store, "s", print)
    recorder.begin()
    recorder(UsageReported(Usage(input=1, requests=1)))
    recorder(MessageAdded(Message.assistant("answer")))
    assert store.get("s").usage == Usage(input=1, requests=1)
    recorder(UsageReported(Usage(input=10, requests=1), purpose="summary"))
    assert store.get("s").usage.input == 11
    recorder(UsageReported(Usage(input=100, requests=1)))
    recorder(TurnEnded("interrupted"))
    assert store.get("s").usage == Usage(input=111, requests=3)
    store.close()
