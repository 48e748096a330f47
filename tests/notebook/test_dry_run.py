"""The request of a turn that is shown before it is sent."""

from __future__ import annotations

import asyncio

from hermes_nb.agent.session.session import Identity, Session, SessionSpec
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.notebook.dry_run import preview
from hermes_nb.notebook.turn import TurnEnv, TurnOptions


async def taken(session, prompt):
    return [event async for event in session.turn(prompt)]


def test_a_script_sees_the_request_that_its_next_turn_sends(home):
    model = ScriptedModel(["Hello.", "Four."])
    store = SqliteStore(home / "notebook.db")
    spec = SessionSpec(model=model, tools=Toolset())
    session = Session.start(store=store, spec=spec, identity=Identity(), warn=print)
    asyncio.run(taken(session, "Hi."))
    env = TurnEnv(
        settings=load_settings(),
        options=TurnOptions(),
        spec=spec,
        session=session,
        site=session.place,
        tools=session.agent.tools,
    )
    told = preview(env, Message.user("How many legs has a dog?"), store=store)
    assert len(model.requests) == 1
    asyncio.run(taken(session, "How many legs has a dog?"))
    sent = model.requests[1]
    assert list(told.request.messages) == list(sent.messages)
    assert list(told.request.tools) == list(sent.tools)
    store.close()


def test_a_model_that_the_cell_names_is_enough_for_a_dry_run(desk, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-no-such-key")
    assert desk.ask("Hi.", model="gpt-4.1", dry_run=True, into="request") == ""
    assert desk.shell.user_ns["request"]["model"] == "gpt-4.1"
    assert desk.agent.models.name == ""
    assert desk.agent.session is None
