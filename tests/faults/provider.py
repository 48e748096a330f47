"""What the tests of a provider's faults share: Hermes in front of one, and what must hold after.

`Story` is a `Hermes` and the server it talks to. Each turn taken with it is checked: its events
follow their grammar, every request that was sent is one that a strict provider takes, what is
stored is what was said, and an error is one line.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hermes_nb import Hermes
from hermes_nb.agent.session.turn import Turn
from hermes_nb.core.events import ContextCompressed, MessageAdded, RequestRetried, TurnEnded
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.safety.redact import without_secrets

from tests.conftest import every_call_has_one_result
from tests.core.grammar import check_grammar
from tests.loopback import Loopback, Reply, stream, text_chunks

MODEL = "loopback-model"


class Story:
    """A conversation with a server, checked turn by turn."""

    def __init__(self, hermes: Hermes, server: Loopback, *, home: Path, work: Path) -> None:
        self.hermes = hermes
        self.server = server
        self.work = work
        self._home = home

    def ask(self, *replies: Reply, prompt: str = "go", fails: bool = False) -> Turn:
        """Take a turn that the server answers with `replies`, and check what must always hold."""
        self.server.replies[:] = replies
        self.server.exchanges.clear()
        before = self.hermes.messages
        turn = self.hermes.ask(prompt)
        check_grammar(turn.events)
        assert turn.reason == ("failed" if fails else "answered"), turn.error
        assert turn.events[-1] == TurnEnded(turn.reason, turn.error, turn.note)
        assert bool(turn.error) == fails and "\n" not in turn.error and len(turn.error) <= 500
        assert folded(before, turn) == self.hermes.messages
        assert every_call_has_one_result(self.hermes.messages)
        for body in self.server.bodies:
            check_request(body)
        assert self.stored() == [without_secrets(each) for each in self.hermes.messages]
        return turn

    def goes_on(self) -> Turn:
        """Take another turn, with a server that is well again: as if nothing had been."""
        turn = self.ask(stream(text_chunks("All is well.")), prompt="and now?")
        assert turn.text == "All is well."
        assert len(self.server.exchanges) == 1
        return turn

    def stored(self) -> list[Message]:
        """Return the session's messages as another process would read them."""
        store = SqliteStore(self._home / "notebook.db")
        with closing(store):
            return store.messages(self.hermes.session_id)

    @property
    def results(self) -> list[str]:
        """What the model was given as results of its calls, in the last request."""
        messages = self.server.bodies[-1]["messages"]
        return [message["content"] for message in messages if message["role"] == "tool"]


@contextmanager
def told_by(server: Loopback, home: Path, work: Path, **options: Any) -> Iterator[Story]:
    """Yield a story with `server`, whose tools work in `work` and ask nobody."""
    work.mkdir(exist_ok=True)
    settings = {"base_url": server.url, "approve": "all", "home": home, "cwd": work}
    with Hermes(MODEL, **(settings | options)) as hermes:
        hermes.progress = False
        yield Story(hermes, server, home=home, work=work)


def folded(before: Sequence[Message], turn: Turn) -> list[Message]:
    """Return the conversation that a turn's events make of the one before it."""
    messages = list(before)
    for event in turn.events:
        if isinstance(event, MessageAdded):
            messages.append(event.message)
        elif isinstance(event, ContextCompressed):
            messages = list(event.messages)
    return messages


def retried(turn: Turn) -> list[RequestRetried]:
    """Return the turn's retries."""
    return [event for event in turn.events if isinstance(event, RequestRetried)]


def check_request(body: Any) -> None:
    """Raise AssertionError for a request that a strict provider would refuse."""
    json.dumps(body, allow_nan=False).encode()
    assert body["model"]
    messages = body["messages"]
    assert messages[0]["role"] == "system"
    assert messages[1]["role"] == "user"
    expected: list[str] = []
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == len(ids), "an id is there twice"
    for message in messages[1:]:
        json.dumps(message, ensure_ascii=False).encode()  # raises for half a surrogate pair
        if message["role"] == "tool":
            assert expected and expected.pop(0) == message["tool_call_id"]
            assert message["content"]
            continue
        assert not expected, f"{expected} got no result"
        assert message["role"] in ("user", "assistant")
        assert message["content"] or message.get("tool_calls")
        for call in message.get("tool_calls", ()):
            assert call["type"] == "function" and call["function"]["name"]
            arguments = json.loads(call["function"]["arguments"])
            assert isinstance(arguments, dict)
            json.dumps(arguments, ensure_ascii=False).encode()
            expected.append(call["id"])
        assert all(expected) and len(set(expected)) == len(expected)
    assert not expected
    assert messages[-1]["role"] in ("user", "tool")
    for name in (tool["function"]["name"] for tool in body.get("tools", ())):
        assert name.replace("_", "").isalnum()


def instant(waited: list[float]) -> Any:
    """Return a sleep that takes no time and notes how long it should have been."""

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    return sleep
