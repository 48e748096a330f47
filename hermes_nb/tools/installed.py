"""Which tools there are besides our own, and which of all a turn has.

Other packages bring theirs under the entry point group `hermes_nb.tools`. An entry point names a
`Tool`, a `Toolset`, a list of tools, or a function without parameters that returns one of these.
What cannot be loaded is said and left out: nobody's turn fails over it.

They also bring wrappers of tools, under `hermes_nb.tool_wrappers`. A wrapper may be there to
protect something, so no tool runs without one that cannot be used.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, cast

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import loaded, plugins, ships
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments, Tool, ToolContext, Toolset
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hermes_nb.tools"
WRAPPERS = "hermes_nb.tool_wrappers"
AUDIT = "audit"
"""The key of the policy, and the name of the wrapper that is used while the policy has it."""


def installed_tools(warn: Callable[[str], None]) -> Toolset:
    """Return the tools of all installed packages, by entry point in the order of their names.

    A tool without a toolset gets the entry point's name, so that `%hermes tools NAME` finds it.
    """
    found: dict[str, Tool] = {}
    for point in plugins(GROUP):
        try:
            tools = _tools(point.load())
        except Exception as error:  # noqa: BLE001 - somebody else's code, run at their import
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            warn(f"the tools {point.name!r} are off: {why}")
            continue
        for tool in tools:
            if tool.name in found:
                warn(f"{point.name!r} brings another tool {tool.name!r}; the first one stays")
            found.setdefault(tool.name, replace(tool, toolset=tool.toolset or point.name))
    return Toolset(found.values())


def without_taken(tools: Toolset, taken: Toolset, warn: Callable[[str], None]) -> Toolset:
    """Return the tools whose names are free; a name of Hermes' own cannot be taken over."""
    for tool in tools:
        if tool.name in taken:
            warn(f"the tool {tool.name!r} is off: Hermes has one of that name")
    return Toolset(tool for tool in tools if tool.name not in taken)


def left(tools: Toolset) -> Toolset:
    """Return the tools that the administrator leaves; the guard asks again at each call."""
    settled = policy()
    return Toolset(tool for tool in tools if not settled.why("tools", tool.name, tool.toolset))


def left_of_added(tools: Iterable[Tool]) -> Toolset:
    """Return those that are left of what packages bring, or the user."""
    settled = policy()
    return Toolset(tool for tool in tools if not settled.why("tools", f"added:{tool.name}"))


class Wrapper(Protocol):
    """A function from tools to tools: what an entry of `hermes_nb.tool_wrappers` names."""

    def __call__(
        self, tools: Toolset, *, source: str, guard: Guard, tell: Callable[[str], None]
    ) -> Toolset:
        """Return the tools, each in a wrapper.

        `source` says who asks for them, as in `Identity`. The `guard` is the one that decides on
        their calls, and `tell` shows a line to the user.
        """
        ...


def wrapped(
    tools: Toolset,
    *,
    source: str,
    guard: Guard,
    tell: Callable[[str], None] = lambda _: None,
) -> Toolset:
    """Return tools in the wrappers that packages bring, the audit around all others.

    Raises `ConfigError` for a wrapper that cannot be used, and where the policy demands an audit
    that is not installed. A call raises it too: the policy may change at any time.
    """
    for point in plugins(WRAPPERS):
        if point.name != AUDIT and not policy().why("tools", f"added:{point.name}"):
            tools = _in_wrapper(point, tools, source=source, guard=guard, tell=tell)
    _auditor()

    def audited(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            if (point := _auditor()) is None:
                return await tool.run(context, arguments)
            only = Toolset([tool])
            (recorded,) = _in_wrapper(point, only, source=source, guard=guard, tell=tell)
            return await recorded.run(context, arguments)

        return replace(tool, run=run)

    return tools.map(audited)


def _auditor() -> EntryPoint | None:
    """Return the wrapper that records calls, None where the policy has no audit."""
    settled = policy()
    if not settled.values.get(AUDIT):
        return None
    if points := plugins(WRAPPERS, AUDIT):
        return max(points, key=ships)
    raise ConfigError(
        f"nothing runs: {settled.file} demands an audit, and no installed package has one "
        f"(entry point {AUDIT!r} of {WRAPPERS})"
    )


def _in_wrapper(
    point: EntryPoint,
    tools: Toolset,
    *,
    source: str,
    guard: Guard,
    tell: Callable[[str], None],
) -> Toolset:
    try:
        wrap = cast("Wrapper", loaded(point))
        return wrap(tools, source=source, guard=guard, tell=tell)
    except ConfigError:
        raise
    except Exception as error:
        message = f"the tool wrapper {point.name!r} cannot be used: {type(error).__name__}: {error}"
        raise ConfigError(message) from error


DEFAULT = "default"
"""The toolset that a turn has which names none."""
_NAMED = ("clarify", "vision", "web")
TOOLSETS = "hermes_nb.toolsets"
"""Entry points of toolsets that are there where they are named; see `ToolsetSetup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetSetup:
    """What a toolset is made for that a session has where it is named.

    An entry of the group `hermes_nb.toolsets` is a function from this to a `Toolset`; its name is
    the toolset's.
    """

    composed: Sequence[str]
    """Names of the models that the settings make of others."""
    model: Callable[[str], ChatModel]
    """Returns an installed model by its name, for the conversation's own to ask.

    It is on the conversation's cassette and is closed with it. Raises `ConfigError` where there is
    none of that name."""


def named_toolsets() -> list[str]:
    """Return the names of toolsets that are there where they are named."""
    return sorted({*_NAMED, *(point.name for point in plugins(TOOLSETS))})


def installed_toolsets(setup: ToolsetSetup) -> Toolset:
    """Return the tools of all that is in `hermes_nb.toolsets`; raise `ConfigError`."""
    found = Toolset()
    for point in plugins(TOOLSETS):
        made = cast("Callable[[ToolsetSetup], Toolset]", loaded(point))(setup)
        found += made if point.module.startswith("hermes_nb.") else left_of_added(made)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Chooses tools by names of tools and toolsets.

    `usual` are those that there are without a word, and `more()` those that have to be named.
    `groups` are toolsets of the configuration: a name in its own group is what it is without.
    """

    usual: Toolset
    more: Callable[[], Toolset] = Toolset
    groups: Mapping[str, Sequence[str]]
    _made: dict[tuple[str, ...], Toolset] = field(default_factory=dict)

    def of(self, names: Sequence[str] = ()) -> Toolset:
        """Return the tools of these names, the usual ones first; raise `ConfigError`.

        The same names give the same object, as what is made of it goes by identity.
        """
        key = tuple(names)
        if key not in self._made:
            self._made[key] = self._chosen(key)
        return self._made[key]

    def _chosen(self, names: Sequence[str]) -> Toolset:
        forced = policy().forced("tools")
        wanted = list(dict.fromkeys([*self._members(names or (DEFAULT,), ()), *forced]))
        here = self._names(self.usual)
        more = Toolset() if here.issuperset(wanted) else self.more()
        more = Toolset(tool for tool in more if tool.name not in self.usual)
        there = self._names(more)
        for name in wanted:
            if name in self.groups and name not in here | there:
                raise ConfigError(f"the list of the toolset {name!r} leads back to itself")
            if name not in here | there:
                policy().check("tools", name)
                known = sorted(here | there | self.groups.keys())
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise ConfigError(f"there is no tool or toolset {name!r}; {hint}")
        added = more.only(*wanted)
        if missing := next(filter(None, (tool.available() for tool in added)), ""):
            raise ConfigError(missing)
        return (self.usual if DEFAULT in wanted else self.usual.only(*wanted)) + added

    def _members(self, names: Sequence[str], inside: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            if name in self.groups and name not in inside:
                yield from self._members(self.groups[name], (*inside, name))
            else:
                yield name

    @staticmethod
    def _names(tools: Toolset) -> set[str]:
        return {DEFAULT, *(name for tool in tools for name in (tool.name, tool.toolset))}


def _tools(given: object) -> list[Tool]:
    if not isinstance(given, Tool | Toolset) and callable(given):
        given = given()
    if isinstance(given, Tool):
        return [given]
    tools = list(given) if isinstance(given, Iterable) else []
    if not tools or not all(isinstance(each, Tool) for each in tools):
        raise TypeError("it is neither a tool nor a list of tools")
    return tools
