"""The model that writes summaries fails or says nothing: the turn goes on and nothing is lost."""

from __future__ import annotations

import pytest
from hermes_nb.context.compressor import Compressor
from hermes_nb.context.policy import Archive
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import ContextCompressed, TurnEnded
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Toolset
from hermes_nb.models.scripted import ScriptedModel

from tests.conftest import every_call_has_one_result, take_turn
from tests.context.conversations import stored
from tests.core.grammar import check_grammar

FAILURES = [
    ModelError("the provider is down", kind=FailureKind.OVERLOADED),
    ModelError("no such model", kind=FailureKind.BAD_REQUEST),
    *(ModelError("key revoked", kind=FailureKind.AUTH), ConnectionResetError("reset"), "", "   \n"),
]


def history():
    messages = []
    for turn in range(40):
        messages.append(Message.user(f"Question {turn}: the limit of part {turn} is {turn}7 rows."))
        messages.append(Message.assistant(f"Answer {turn}. " + "word " * 300))
    return messages


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_the_turn_goes_on_and_nothing_is_lost(failure):
    messages = history()
    store, session = stored(messages)
    auxiliary = ScriptedModel([failure], window=32_000)
    main = ScriptedModel(["One.", "Two."], window=32_000)
    engine = Compressor(main, auxiliary=auxiliary, archive=Archive(store, session))
    agent = Agent(main, Toolset(), messages=messages, engine=engine, sinks=[])
    events = take_turn(agent, "and now?")
    check_grammar(events)
    assert events[-1] == TurnEnded("answered")
    (compressed,) = [event for event in events if isinstance(event, ContextCompressed)]
    assert compressed.phase == "extracted"
    assert "could not summarise" in compressed.warning
    assert "revoked" not in compressed.summary
    assert "Question 20" in compressed.summary
    assert every_call_has_one_result(agent.messages)
    assert [row.message for row in store.rows(session)] == messages, "all of it is still stored"

    agent.restore([*agent.messages, *history()])
    events = take_turn(agent, "go on")
    assert events[-1] == TurnEnded("answered")
    assert len(auxiliary.requests) == 1, "no model is asked again so soon"
    (compressed,) = [event for event in events if isinstance(event, ContextCompressed)]
    assert "ten minutes" in compressed.warning
