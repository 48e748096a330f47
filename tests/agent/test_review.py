"""Reviews: what they may do, what they send, and that nobody is held up or harmed by them."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from hermes_nb.agent.reviews import MAX_REQUESTS, Reviewer, Subjects, review
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import ReviewFinished, ReviewStarted
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Place, Risk, Tool, Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call

from tests.patience import SOON, until

SYSTEM = "You are Hermes."
TALK = [Message.user("Please answer in German."), Message.assistant("Gerne.")]


def make(name, run=lambda c, a: "done", risk=Risk.READ, **options):
    parameters = {"type": "object", "properties": {}}
    return Tool(name=name, description="", parameters=parameters, run=run, risk=risk, **options)


class Notes:
    """A memory tool that keeps what it is told."""

    def __init__(self):
        self.kept = []

    def tool(self):
        def run(context, arguments):
            self.kept.append(arguments["content"])
            return "saved"

        return make("memory", run, Risk.REMEMBER, describe=lambda a: f"add {a['content']}")


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "notebook.db")
    store.start(session_id="talk")
    yield store
    store.close()


def subjects(model, notes=None, extra=()):
    notes = notes or Notes()
    forbidden = make("terminal", lambda c, a: pytest.fail("ran a command"), Risk.EXECUTE)
    return Subjects(
        place=Place(session="talk"),
        model=lambda: (model, False),
        system=SYSTEM,
        tools=Toolset([forbidden, make("memory", risk=Risk.REMEMBER), *extra]),
        own=Toolset([notes.tool()]),
        messages=TALK,
    )


def look(seen, store, subject="memory"):
    events = []
    finished = asyncio.run(review(seen, subject, store=store, emit=events.append))
    assert events == [ReviewStarted("talk", subject), finished]
    return finished


def test_it_saves_what_it_learned_and_says_so(store):
    notes = Notes()
    model = ScriptedModel([call("memory", content="answers in German"), "Saved one thing."])
    finished = look(subjects(model, notes), store)
    assert notes.kept == ["answers in German"]
    assert finished.saved == ("memory: add answers in German",)
    assert finished.error == ""
    assert finished.usage.requests == 2


def test_it_extends_the_conversations_prefix(store):
    model = ScriptedModel(["Nothing to save."])
    seen = subjects(model)
    look(seen, store)
    (request,) = model.requests
    assert list(request.messages[:3]) == [Message.system(SYSTEM), *TALK]
    assert [(t.name, t.description, t.parameters) for t in request.tools] == [
        (t.name, t.description, t.parameters) for t in seen.tools
    ]


def test_nothing_else_runs_in_it(store):
    model = ScriptedModel([call("terminal"), "Nothing to save."])
    look(subjects(model), store)
    assert "only the memory and skill tools" in model.requests[1].messages[-1].text


def test_it_ends_after_so_many_requests(store):
    model = ScriptedModel([call("memory", content=str(n)) for n in range(7)] + ["enough"])
    finished = look(subjects(model), store)
    assert len(model.requests) == MAX_REQUESTS == finished.usage.requests


def test_its_rows_are_its_own(store):
    look(subjects(ScriptedModel(["Nothing to save."])), store)
    row = next(row for row in store.sessions() if row.source == "review")
    assert row.parent == "talk"
    assert row.ended is not None
    assert len(store.messages(row.id)) == 2
    assert store.messages("talk") == []


class Broken(ScriptedModel):
    async def stream(self, request):
        raise OSError("the network is down")
        yield


def test_its_failure_is_one_line_and_one_event(store, caplog):
    with caplog.at_level(logging.WARNING, logger="hermes_nb"):
        finished = look(subjects(Broken([])), store)
    assert "network is down" in finished.error
    assert finished.saved == ()


def test_a_model_that_cannot_be_built_is_a_failure_too(store):
    def nothing():
        raise RuntimeError("no model")

    seen = subjects(None)
    seen = Subjects(**{**{k: getattr(seen, k) for k in seen.__slots__}, "model": nothing})
    assert "no model" in look(seen, store).error


def test_a_store_that_fails_does_not_stop_it(tmp_path):
    class Full(SqliteStore):
        def start(self, **kwargs):
            raise StoreError("the disk is full")

    notes = Notes()
    model = ScriptedModel([call("memory", content="x"), "ok"])
    assert look(subjects(model, notes), Full(tmp_path / "x.db")).saved
    assert notes.kept == ["x"]


class Slow(ScriptedModel):
    async def stream(self, request):
        await asyncio.sleep(30)
        yield


def test_it_runs_beside_and_one_at_a_time(store):
    reviewer = Reviewer()
    began = time.monotonic()
    assert reviewer.start(subjects(Slow([])), "memory", store)
    assert time.monotonic() - began < SOON
    assert reviewer.busy
    assert not reviewer.start(subjects(ScriptedModel([])), "memory", store)
    reviewer.close()
    assert not reviewer.busy


def test_what_it_learned_is_told_once(store):
    events = []
    reviewer = Reviewer(emit=events.append)
    model = ScriptedModel([call("memory", content="x"), "ok"])
    reviewer.start(subjects(model), "both", store)
    assert reviewer.wait(10).saved == ("memory: add x",)
    assert reviewer.learned() == ["memory: add x"]
    assert reviewer.learned() == []
    assert isinstance(events[-1], ReviewFinished)
    reviewer.close()


def test_a_stopped_review_says_that_it_was_stopped(store):
    events = []
    reviewer = Reviewer(emit=events.append)
    reviewer.start(subjects(Slow([])), "memory", store)
    while not events:
        time.sleep(0.01)
    reviewer.stop()
    assert until(lambda: len(events) > 1)
    assert events[-1].error == "stopped"
    reviewer.close()
