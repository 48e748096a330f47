"""Select a turn's tools by tool and toolset names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.tools import Toolset
from hermes_nb.safety.administrator import NONE, Policy

DEFAULT = "default"
"""Name of the toolset for a turn that doesn't select any tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Selects tools by tool and toolset names."""

    usual: Toolset
    """The default tools, which are available without being selected."""
    more: Callable[[], Toolset] = Toolset
    """Returns the optional tools, which have to be selected; only called when needed."""
    groups: Mapping[str, Sequence[str]]
    """Toolsets in the configuration: names of tools, toolsets and other groups, by group name.

    Within a group, its own name refers to the tool or toolset with that name."""
    policy: Policy = NONE
    """The administrator's policy, which can force or forbid tools."""
    _made: dict[tuple[str, ...], Toolset] = field(default_factory=dict)
    """Cache: the toolset for each tuple of names."""

    def of(self, names: Sequence[str] = ()) -> Toolset:
        """Return the tools with these names, the default ones first.

        The same names return the same object, because callers cache by its identity.

        Raises:
            ConfigError: a name is unknown or forbidden, a group contains itself, or a tool is
                unavailable.
        """
        key = tuple(names)
        if key not in self._made:
            self._made[key] = self._chosen(key)
        return self._made[key]

    def _chosen(self, names: Sequence[str]) -> Toolset:
        forced = self.policy.forced("tools")
        wanted = list(dict.fromkeys([*self._members(names or (DEFAULT,), ()), *forced]))
        here = self._names(self.usual)
        more = Toolset() if here.issuperset(wanted) else self.more()
        more = Toolset(tool for tool in more if tool.name not in self.usual)
        there = self._names(more)
        for name in wanted:
            if name in self.groups and name not in here | there:
                raise ConfigError(f"the toolset {name!r} contains itself")
            if name not in here | there:
                self.policy.check("tools", name)
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
