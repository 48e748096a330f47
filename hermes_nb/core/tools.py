"""What a tool is: a name, a schema, a function, and how careful one has to be with it.

Toolsets are immutable and keep their order, so the schemas a model sees never move. What cuts
across tools (output caps, hints, approval) is a wrapper that maps one toolset to another.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hermes_nb.core.budget import Budget
from hermes_nb.core.events import Answer, ToolEvent, ToolProgress
from hermes_nb.core.messages import Image, Json, Message, Origin, ToolCall
from hermes_nb.core.threads import in_thread


class Risk(Enum):
    """The worst a tool can do.

    To remember is to write into the agent's own memory and skills. What is done later outlives the
    session: a program runs it, or an agent obeys it, when nobody is asked any more.
    """

    READ = "read"
    REMEMBER = "remember"
    WRITE = "write"
    LATER = "later"
    EXECUTE = "execute"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool returns when text alone will not do.

    `origin` is whose text it is: `ours` is the tool's own words alone, and not looked through.
    """

    text: str
    images: tuple[Image, ...] = ()
    origin: Origin = "workspace"


MOST_ARGUMENTS = 500_000
"""Characters of a call's arguments, as JSON: as much as the longest answers of models hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something happens: a session and its turn, a notebook's path, a cell's id.

    What is not known is "" or 0. What a child agent does happens where its parent asked for it.
    """

    session: str = ""
    turn: int = 0
    notebook: str = ""
    cell: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a running call may use of the turn it runs in.

    `turn` counts the agent's own turns, `place` says where the call comes from. `emit` may be
    called from any thread. `stop` is set when the turn is stopped: a tool that runs in a thread
    looks at it between pieces of work. `beside` are the calls that run side by side, this one among
    them, in the order in which the model asked for them. `messages` is the conversation up to them,
    `tools` are the turn's, and `budgets` what it is held to. `permit` is how the guard lets this
    call run, for the tool that has more than one way; `ask` puts a further question to the user,
    and `remember` lets calls like this one run in a way from now on.
    """

    call: ToolCall
    turn: int = 0
    place: Place = field(default_factory=Place)
    beside: tuple[ToolCall, ...] = ()
    messages: Sequence[Message] = ()
    tools: Sequence[Tool] = ()
    budgets: Sequence[Budget] = ()
    permit: object = None
    ask: Ask | None = None
    remember: Callable[[object], None] = lambda _: None
    emit: Callable[[ToolEvent], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)

    def progress(self, text: str) -> None:
        """Show a sign of life."""
        self.emit(ToolProgress(self.call.id, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a call would run or change, as it was at one moment."""

    shown: str
    """All of it, as the user reads it."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """A digest of each file, notebook, cell or text that the call names, by its name."""
    whole: bool = True
    """Whether all of them were read to the end. If not, an approval is not remembered."""

    def changes(self, now: Content) -> list[str]:
        """Return the names of what differs from how it is `now`."""
        names = sorted(self.digests.keys() | now.digests.keys())
        return [name for name in names if self.digests.get(name) != now.digests.get(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user is asked about a call: `shown` is what would run or change, whole.

    `shape` is the key under which "always" is remembered, "" where that is not offered, and
    `lasting` says in words what it would cover. `outside` offers to run it without the sandbox.
    `yes` is the word for a yes, where the tool's own does not fit. With `choices` it is no question
    of yes or no: the answer "once" has one of them, or the user's own words, as its reason. Where
    the whole call would run `again`, the question shows what it would run now, and is bound to it
    as the first one is. `in_every_mode` says that no approval mode answers it.
    """

    why: str
    shown: str
    shape: str = ""
    lasting: str = ""
    outside: bool = False
    yes: str = ""
    choices: tuple[str, ...] | None = None
    again: bool = False
    in_every_mode: bool = False


Ask = Callable[[Question], Awaitable[Answer]]
Arguments = Mapping[str, Json]
"""A call's arguments, by name."""
Run = Callable[[ToolContext, Arguments], Any]
"""A coroutine function, or a plain one that may block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call.

    `parameters` is a JSON Schema object. `run(context, arguments)` is a coroutine function that
    returns text or a `ToolOutput`; a plain function that is given becomes one that runs it in a
    thread. It raises `ToolError` for what the model should read. `check(arguments)` says what
    is wrong with them, or nothing. `paths` names the arguments that are paths below `root`.
    `exclusive` tools never run beside another call, nor does a call that may put a question to the
    user, as `asks(arguments)` says. `available()` says why the tool cannot be used
    now, or nothing. `origin(arguments)` says where a result comes from that neither the user nor
    the agent wrote (a web page, a command's output): such a result is data, never an instruction;
    "" or no function means that it is trusted. `risk_of(arguments)` is the risk of one call, where
    the tool's own is only the usual one. `describe(arguments)` is the gist that the user sees.
    `await preview(arguments)` is what the user approves where the arguments alone do not tell, as
    a diff does: a text, whose every change asks again, or a `Content`, which says itself what it
    depends on. A `ToolError` from it ends the call unasked. `wording(arguments)` is the text that
    a call would make last (memory, a skill): the guard asks where it is somebody else's.
    `await result(arguments)` is the text that a write would leave, where the arguments are only a
    part of it: the guard judges the whole. `scope(arguments)` is what "always" covers, where that
    is not the tool. What goes to a tool of the network that `stays` reaches nobody but its own
    service, and may go there once allowed. A call whose arguments have more than `most` characters
    is refused before anything looks at them.
    """

    name: str
    description: str
    parameters: Arguments
    run: Run
    toolset: str = ""
    risk: Risk = Risk.READ
    paths: tuple[str, ...] = ()
    root: Path | None = None
    exclusive: bool = False
    asks: Callable[[Arguments], bool] | None = None
    cap: int | None = None
    check: Callable[[Arguments], str] = lambda _: ""
    available: Callable[[], str] = str
    origin: Callable[[Arguments], str] | None = None
    risk_of: Callable[[Arguments], Risk] | None = None
    describe: Callable[[Arguments], str] | None = None
    preview: Callable[[Arguments], Awaitable[str | Content]] | None = None
    result: Callable[[Arguments], Awaitable[str]] | None = None
    wording: Callable[[Mapping[str, object]], str] | None = None
    scope: Callable[[Arguments], str] | None = None
    stays: bool = False
    most: int = MOST_ARGUMENTS

    def __post_init__(self) -> None:
        """Make a plain function a coroutine function: nowhere else a call is given a thread."""
        if not inspect.iscoroutinefunction(self.run):
            object.__setattr__(self, "run", _in_thread(self.run))


def _in_thread(function: Run) -> Run:
    async def run(context: ToolContext, arguments: Arguments) -> object:
        result = await in_thread(function, context, arguments)
        return await result if inspect.isawaitable(result) else result

    return run


class Toolset:
    """Tools in a fixed order, by unique name."""

    __slots__ = ("_tools",)

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are named {tool.name!r}; rename one")
            self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __add__(self, other: Toolset) -> Toolset:
        """Return both, this one's tools first."""
        return Toolset([*self, *other])

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self._tools)})"

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)

    def only(self, *names: str) -> Toolset:
        """Return the tools whose name or toolset is among `names`, in this set's order."""
        return Toolset(tool for tool in self if tool.name in names or tool.toolset in names)

    def without(self, *names: str) -> Toolset:
        """Return the tools whose name and toolset are not among `names`."""
        return Toolset(t for t in self if t.name not in names and t.toolset not in names)

    def describe(self, call: ToolCall) -> str:
        """Return the gist of a call in its tool's own words, "" where it has none."""
        tool = self.get(call.name)
        if tool is None or tool.describe is None:
            return ""
        try:
            return tool.describe(call.arguments)
        except (KeyError, TypeError, ValueError, AttributeError):  # the arguments may be anything
            return ""

    def usable(self) -> Toolset:
        """Return the tools that are available now."""
        return Toolset(tool for tool in self if not tool.available())

    def map(self, change: Callable[[Tool], Tool]) -> Toolset:
        """Return the set with every tool changed."""
        return Toolset(change(tool) for tool in self)
