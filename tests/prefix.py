"""A pytest plugin: over the whole suite, the requests of a session only ever extend one prefix.

That is what providers' prompt caches live from, and it is lost by a single byte. Every request that
an `Agent` sends is compared with the one before it, system prompt and tools included: as messages,
and as the bytes an `OpenAIChat` makes of them (before breakpoints are marked). A resumed session
goes on with the prefix it had. The chain begins anew after a compression; a test in which the user
exchanges tools or reloads the prompt says so with `@pytest.mark.new_prefix`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps

import pytest
from hermes_nb.agent.session.session import Session
from hermes_nb.core.conversation import Conversation
from hermes_nb.core.events import ContextCompressed, Event
from hermes_nb.core.json_values import dumps
from hermes_nb.core.loop import Agent, Asking
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Toolset
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.text_calls import function_schema

CONTEXT = 60
"""Bytes shown before and behind the first that differs."""


@dataclass(slots=True)
class Chain:
    """The last request of a session, as messages and as each model's bytes."""

    messages: tuple[Message, ...] = ()
    tools: Toolset = field(default_factory=Toolset)
    wires: dict[object, list[bytes]] = field(default_factory=dict)
    requests: int = 0
    begun: bool = False


class Prefixes:
    """Follows the sessions of a test run and collects what broke a prefix."""

    def __init__(self) -> None:
        self.sessions = 0
        self.requests = 0
        self.broken: list[str] = []
        self._chains: weakref.WeakKeyDictionary[Agent, Chain] = weakref.WeakKeyDictionary()
        self._resumable: dict[str, Chain] = {}
        self._lock = threading.RLock()

    def sent(self, agent: Agent, request: Request) -> None:
        """Compare a request with the last one of its session."""
        with self._lock:
            chain = self._chains.setdefault(agent, Chain())
            self.sessions += not chain.requests
            self.requests += 1
            chain.requests += 1
            grown = request.messages[len(chain.messages) :]
            if chain.begun:
                what = f"request {chain.requests} of a session does not extend the one before it"
                self.broken += [f"{what}: {each}" for each in _differences(chain, request)]
            for model in _models(agent.model):
                self._wired(chain, model, request, grown)
            chain.messages, chain.tools, chain.begun = request.messages, request.tools, True

    def resumed(self, session_id: str, agent: Agent) -> None:
        """Let an agent go on where the last one of the same session ended."""
        with self._lock:
            chain = self._resumable.setdefault(session_id, Chain())
            self._chains[agent] = chain

    def renewed(self, agent: Agent) -> None:
        """Begin a new prefix."""
        with self._lock:
            chain = self._chains.setdefault(agent, Chain())
            chain.begun = False
            chain.wires.clear()

    def test_over(self) -> list[str]:
        """Return what broke since the last test, and forget its stored sessions."""
        with self._lock:
            broken, self.broken = self.broken, []
            self._resumable.clear()
            return broken

    def _wired(
        self, chain: Chain, model: OpenAIChat, request: Request, grown: Sequence[Message]
    ) -> None:
        strategy, wire = model._strategy, model._wire
        items = wire.items(strategy.messages(request))
        # Such a provider wants reasoning back within a turn and not after it.
        turn_over = any(message.role == "user" for message in grown)
        if turn_over and model.profile.echo_policy == "turn":
            chain.wires.pop(strategy, None)
        before = chain.wires.get(strategy, [])
        for position, old in enumerate(before):
            new = items[position] if position < len(items) else b""
            if old is not new and old != new:
                where = f"wire message {position}"
                self.broken.append(f"on the wire, {where} changed: {_first_difference(old, new)}")
                break
        chain.wires[strategy] = items


def _differences(chain: Chain, request: Request) -> Iterator[str]:
    for position, old in enumerate(chain.messages):
        new = request.messages[position] if position < len(request.messages) else None
        if old is not new and old != new:
            shown = _first_difference(_bytes(old), b"" if new is None else _bytes(new))
            yield f"message {position} ({old.role}) differs: {shown}"
            break
    if chain.tools is not request.tools:
        before, after = _schemas(chain.tools), _schemas(request.tools)
        if before != after:
            yield f"the tools differ: {_first_difference(before, after)}"


def _bytes(message: Message) -> bytes:
    return dumps(message.to_dict())


def _schemas(tools: Toolset) -> bytes:
    return dumps([function_schema(tool) for tool in tools])


def _first_difference(old: bytes, new: bytes) -> str:
    """Return both sides around the first byte that differs."""
    pairs = enumerate(zip(old, new, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))
    around = slice(max(0, at - CONTEXT), at + CONTEXT)
    return f"at byte {at}\n  before: {old[around]!r}\n  now:    {new[around]!r}"


def _models(model: object) -> Iterator[OpenAIChat]:
    """Yield the adapters behind retries and fallbacks."""
    if isinstance(model, OpenAIChat):
        yield model
    for inner in (getattr(model, "_model", None), *(getattr(model, "_models", None) or ())):
        if inner is not None:
            yield from _models(inner)


def _watch(prefixes: Prefixes) -> list[tuple[type, str, Callable]]:
    """Put the plugin in the way of what agents do; return what was there."""
    equip, ask, publish, begin = Agent._asking, Asking._ask, Agent._publish, Session.__init__
    owners: weakref.WeakKeyDictionary[Conversation, Agent] = weakref.WeakKeyDictionary()

    @wraps(equip)
    def equipped(self):
        asking = equip(self)
        owners[asking.conversation] = self
        return asking

    @wraps(ask)
    def asked(self, tool_choice):
        request = self.conversation.request(self.tools, tool_choice)
        prefixes.sent(owners[self.conversation], request)
        return ask(self, tool_choice)

    @wraps(publish)
    def published(self, event: Event, *rest, **options):
        if isinstance(event, ContextCompressed):
            prefixes.renewed(self)
        return publish(self, event, *rest, **options)

    @wraps(begin)
    def begun(self, *, session_id: str, agent: Agent, **options):
        prefixes.resumed(session_id, agent)
        begin(self, session_id=session_id, agent=agent, **options)

    Agent._asking, Asking._ask = equipped, asked
    Agent._publish, Session.__init__ = published, begun
    return [
        (Agent, "_asking", equip),
        (Asking, "_ask", ask),
        (Agent, "_publish", publish),
        (Session, "__init__", begin),
    ]


class Plugin:
    """Fails the test whose session broke its prefix; says at the end how many were looked at."""

    def __init__(self) -> None:
        self.prefixes = Prefixes()
        self._before = _watch(self.prefixes)
        self._workers = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        self.prefixes.test_over()  # what a fixture or a thread left behind is not this test's
        result = yield
        broken = self.prefixes.test_over()
        if broken and not item.get_closest_marker("new_prefix"):
            pytest.fail("\n".join(broken[:3]), pytrace=False)
        return result

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist: it reports nothing
            session.config.workeroutput["prefixes"] = self._counts()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self._workers.append(getattr(node, "workeroutput", {}).get("prefixes", (0, 0)))

    def pytest_terminal_summary(self, terminalreporter):
        requests, sessions = map(sum, zip(self._counts(), *self._workers, strict=True))
        counts = f"{requests} requests of {sessions} sessions"
        terminalreporter.write_line(f"prefixes: {counts} checked")

    def _counts(self):
        return self.prefixes.requests, self.prefixes.sessions

    def pytest_unconfigure(self):
        for owner, name, function in self._before:
            setattr(owner, name, function)


def pytest_configure(config):
    """Register the marker and begin to watch."""
    config.addinivalue_line(
        "markers", "new_prefix: the user changes tools or prompt within a session, as this may"
    )
    config.pluginmanager.register(Plugin(), "hermes-prefixes")
