"""Tools: the functions that a model may call, with their schemas and risks.

Toolsets are immutable and ordered, so the schemas sent to the model don't change order. Features
that concern all tools (output limits, hints, approval) are wrappers that map one toolset to
another.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from hermes_nb.core.budget import Budget
from hermes_nb.core.events import Answer, ToolEvent, ToolProgress
from hermes_nb.core.messages import Image, Json, Message, Origin, ToolCall
from hermes_nb.core.threads import in_thread

T = TypeVar("T")


class Risk(Enum):
    """The worst effect that a tool can have.

    REMEMBER means writing to the agent's memory and skills. LATER means an effect after the
    session, when no one approves calls any more, such as a program that runs later, or an
    instruction that a later agent follows.
    """

    READ = "read"
    REMEMBER = "remember"
    WRITE = "write"
    LATER = "later"
    EXECUTE = "execute"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A tool's result, for tools that return more than text."""

    text: str
    """The text for the model."""
    images: tuple[Image, ...] = ()
    """Images that follow the text."""
    origin: Origin = "workspace"
    """The origin of the text. `ours` means the tool's own wording, which is not scanned."""


MOST_ARGUMENTS = 500_000
"""Maximum size of a call's arguments, in characters of JSON: about the longest answer that any
model gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The location of a call or an event; for a child agent, the location of its parent's call."""

    session: str = ""
    """Session id; "" if unknown."""
    turn: int = 0
    """Number of the turn in its session, from 1; 0 if unknown."""
    notebook: str = ""
    """Path of the notebook; "" if unknown."""
    cell: str = ""
    """Id of the cell; "" if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The parts of the turn that a running call can use."""

    call: ToolCall
    """The call itself."""
    turn: int = 0
    """Number of the turn, counted by the agent that runs the call."""
    place: Place = field(default_factory=Place)
    """The session, turn and notebook that the call comes from."""
    beside: tuple[ToolCall, ...] = ()
    """The calls that run in parallel with this one, and this one, in the model's order."""
    messages: Sequence[Message] = ()
    """The conversation up to these calls."""
    tools: Sequence[Tool] = ()
    """The turn's tools."""
    budgets: Sequence[Budget] = ()
    """The budgets that the call counts against."""
    sees_images: bool = False
    """Whether the model is known to accept images."""
    permit: object = None
    """How the guard allows the call to run, for tools with more than one way; None for others."""
    ask: Ask | None = None
    """Asks the user a further question; None if unavailable."""
    remember: Callable[[object], None] = lambda _: None
    """Allows similar calls to run in a given way from now on."""
    emit: Callable[[ToolEvent], None] = lambda _: None
    """Emits an event; thread-safe."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the turn is stopped. A tool in a thread checks it between steps."""

    def progress(self, text: str) -> None:
        """Emit a progress message."""
        self.emit(ToolProgress(self.call.id, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A snapshot of the content that a call would run or change."""

    shown: str
    """The whole content, as text for the user."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Digests of the files, notebooks, cells or other content that the call refers to, by name."""
    whole: bool = True
    """Whether all of them were read completely. If not, an approval is not remembered."""
    code: str = ""
    """The cell's code after the call if the user can approve running it, too; "" if not."""

    def changes(self, now: Content) -> list[str]:
        """Return the names of the items that differ from the later snapshot `now`."""
        names = sorted(self.digests.keys() | now.digests.keys())
        return [name for name in names if self.digests.get(name) != now.digests.get(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to the user about a call."""

    why: str
    """Why approval is required."""
    shown: str
    """The complete content that would run or change."""
    shape: str = ""
    """Key under which "always" is remembered; "" if that is not offered."""
    lasting: str = ""
    """Description of what "always" would cover."""
    outside: bool = False
    """Whether to offer running it without the sandbox."""
    yes: str = ""
    """Label for the approval button; "" for the tool's default."""
    choices: tuple[str, ...] | None = None
    """Options for a multiple-choice question. The answer is then "once", and its reason is an
    option or the user's own words. None for an approval."""
    again: bool = False
    """Whether approval would run the whole call again. The question then shows the current content,
    and the approval covers only that, like the first one."""
    in_every_mode: bool = False
    """Whether to ask even if the approval mode would allow the call."""
    turn: bool = False
    """Whether to offer allowing this tool's calls until the turn ends."""
    runs: bool = False
    """Whether to offer running the cell that the call writes, too."""
    calls: tuple[ToolCall, ...] = ()
    """All calls of a question about several calls; () for one call."""


Ask = Callable[[Question], Awaitable[Answer]]
"""Asks a question and returns the answer."""
Arguments = Mapping[str, Json]
"""A call's arguments, by name."""
Run = Callable[[ToolContext, Arguments], Any]
"""A tool's function: async, or blocking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    """Unique name, as the model sees it."""
    description: str
    """Describes the tool to the model."""
    parameters: Arguments
    """JSON Schema of the arguments, an object."""
    run: Run
    """Runs the call with its context and arguments, and returns text or a `ToolOutput`. It raises
    `ToolError` with a message for the model. A function that isn't async runs in a thread."""
    toolset: str = ""
    """Name of the group that the tool belongs to, or ""."""
    risk: Risk = Risk.READ
    """A call's usual risk; see `risk_of`."""
    paths: tuple[str, ...] = ()
    """Names of the arguments that are paths under `root`."""
    root: Path | None = None
    """Directory that relative paths refer to; None for the working directory."""
    exclusive: bool = False
    """Whether a call must not run in parallel with others."""
    asks: Callable[[Arguments], bool] | None = None
    """Returns whether a call may ask the user a question; such a call runs alone."""
    cap: int | None = None
    """Maximum length of the output, in characters; None for the default."""
    check: Callable[[Arguments], str] = lambda _: ""
    """Returns an error message if the arguments are invalid, or ""."""
    available: Callable[[], str] = str
    """Returns the reason the tool is unavailable now, or ""."""
    origin: Callable[[Arguments], str] | None = None
    """Returns the name of the untrusted source of the result, such as a web page or a command's
    output. The result is then treated as data, never as instructions. "" or no function: it is
    trusted."""
    risk_of: Callable[[Arguments], Risk] | None = None
    """Returns one call's risk, or None if it is always `risk`."""
    describe: Callable[[Arguments], str] | None = None
    """Returns a one-line summary of the call for the user."""
    preview: Callable[..., Awaitable[str | Content]] | None = None
    """Returns the content to approve, such as a diff, or None if the arguments already show it. If
    a returned text changes, the user is asked again; a `Content` lists its own dependencies. A
    `ToolError` ends the call. It takes the arguments, or the call's context and the arguments."""
    result: Callable[..., Awaitable[str]] | None = None
    """Returns the whole text after a write whose arguments contain only a part of it. The guard
    checks the whole text. It takes the same arguments as `preview`."""
    wording: Callable[[Mapping[str, object]], str] | None = None
    """Returns the text that the call would store permanently (memory, a skill). The guard asks the
    user if that text comes from an untrusted source. None means all text arguments."""
    scope: Callable[[Arguments], str] | None = None
    """Returns the name of the group of calls that "always" covers, or None for all the tool's
    calls."""
    runner: str = ""
    """Name of the tool that runs the cell that this one writes, or "". See `Content.code`."""
    known: Callable[[ToolContext, Arguments], Awaitable[ToolOutput | None]] | None = None
    """Returns the result of a call that would only repeat what the user has just approved, such as
    the run of a new cell, or None. A call with a result is neither asked about nor run."""
    joint: bool = False
    """Whether one question covers all calls to this tool in one reply of the model. Its `preview`
    must return digests."""
    stays: bool = False
    """Whether the tool's network requests reach only its own service. If so, an allowed call isn't
    asked about again because of untrusted content in the conversation."""
    most: int = MOST_ARGUMENTS
    """Maximum size of the arguments in characters of JSON. Larger calls are refused unread."""

    def __post_init__(self) -> None:
        """Wrap a function that isn't async, so that it runs in a thread."""
        if not inspect.iscoroutinefunction(self.run):
            object.__setattr__(self, "run", _in_thread(self.run))


async def foreseen(
    function: Callable[..., Awaitable[T]], context: ToolContext, arguments: Arguments
) -> T:
    """Call a tool's `preview` or `result`; pass the context only if it has two parameters."""
    with_context = len(inspect.signature(function).parameters) > 1
    return await (function(context, arguments) if with_context else function(arguments))


def _in_thread(function: Run) -> Run:
    async def run(context: ToolContext, arguments: Arguments) -> object:
        result = await in_thread(function, context, arguments)
        return await result if inspect.isawaitable(result) else result

    return run


class Toolset:
    """An ordered set of tools with unique names."""

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
        """Return the tools of both sets, this one's first."""
        return Toolset([*self, *other])

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self._tools)})"

    def get(self, name: str) -> Tool | None:
        """Return the tool with that name, or None."""
        return self._tools.get(name)

    def only(self, *names: str) -> Toolset:
        """Return the tools whose name or toolset is in `names`, in order."""
        return Toolset(tool for tool in self if tool.name in names or tool.toolset in names)

    def without(self, *names: str) -> Toolset:
        """Return the tools whose name and toolset are not in `names`, in order."""
        return Toolset(t for t in self if t.name not in names and t.toolset not in names)

    def describe(self, call: ToolCall) -> str:
        """Return the tool's summary of a call, or "" if it has none."""
        tool = self.get(call.name)
        if tool is None or tool.describe is None:
            return ""
        try:
            return tool.describe(call.arguments)
        except (KeyError, TypeError, ValueError, AttributeError):  # the arguments may be anything
            return ""

    def usable(self) -> Toolset:
        """Return the tools that are currently available."""
        return Toolset(tool for tool in self if not tool.available())

    def map(self, change: Callable[[Tool], Tool]) -> Toolset:
        """Return a set with `change` applied to every tool."""
        return Toolset(change(tool) for tool in self)
