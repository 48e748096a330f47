"""Which tools a turn has, by names of tools and toolsets."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.tools import Toolset
from hermes_nb.safety.administrator import NONE, Policy

DEFAULT = "default"
"""The toolset that a turn has which names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Chooses tools by names of tools and toolsets.

    `usual` are those that there are without a word, and `more()` those that have to be named.
    `groups` are toolsets of the configuration: a name in its own group is what it is without.
    """

    usual: Toolset
    more: Callable[[], Toolset] = Toolset
    groups: Mapping[str, Sequence[str]]
    policy: Policy = NONE
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
        forced = self.policy.forced("tools")
        wanted = list(dict.fromkeys([*self._members(names or (DEFAULT,), ()), *forced]))
        here = self._names(self.usual)
        more = Toolset() if here.issuperset(wanted) else self.more()
        more = Toolset(tool for tool in more if tool.name not in self.usual)
        there = self._names(more)
        for name in wanted:
            if name in self.groups and name not in here | there:
                raise ConfigError(f"the list of the toolset {name!r} leads back to itself")
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
