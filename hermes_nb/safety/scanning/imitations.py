"""Names that are another's but for a slip of the pen: packages to be installed, skills themselves.

Whoever registers `reqeusts` waits for those who mean `requests`, or for an agent that does as it is
told. What counts as a slip is a letter doubled, dropped or exchanged with its neighbour; names that
differ in a letter are too often two honest ones.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hermes_nb.safety.reading.patterns import Sign, spans

_SHORTEST = 5
_INSTALLS = (
    r"\b(?:pip3?|pipx|uv|poetry|npm|pnpm|yarn|bun|conda|mamba)\s{1,3}(?:pip\s)?"
    r"(?:install|add|i)\s[^\n|;&`#)]{1,300}"
)
_NEEDS = ("install ", " add ", " i ")
_PACKAGE = re.compile(r"(?<![^\s\"'])([a-z][a-z0-9._-]{3,60})(?=[\s\"'\[=<>~!@,]|$)")
_NAME = re.compile(
    r"\A\s{0,4}---[^\n]{0,4}\n(?:[^\n]{0,300}\n){0,20}?name:[ \t\"']{0,4}([\w-]{1,64})"
)


def imitations(text: str) -> Iterator[Sign]:
    """Yield the names in a lower-case text that imitate well-known ones."""
    for start, end in spans(_INSTALLS, text, _NEEDS):
        for name in _PACKAGE.finditer(text, start, end):
            if name[1] in slips(_imitated("packages")):
                yield Sign("imitation", "package", 1, *name.span(1))
    if (named := _NAME.match(text)) is not None:
        known = slips(_imitated("skills"))
        if any(word in known for word in re.split(r"[-_]", named[1])):
            yield Sign("imitation", "skill", 1, *named.span(1))


@cache
def _imitated(kind: str) -> str:
    """Return names in one line, as `imitations.toml` has them."""
    data = tomllib.loads(Path(__file__).with_name("imitations.toml").read_text(encoding="utf-8"))
    return str(data[kind])


@cache
def slips(names: str) -> frozenset[str]:
    """Return every slip of names, given in one line, that is none of the names itself."""
    known = names.split()
    found = {slip for name in known if len(name) >= _SHORTEST for slip in _slips(name)}
    return frozenset(found.difference(known))


def _slips(name: str) -> Iterator[str]:
    """Yield a name with a letter doubled, dropped, or exchanged with the next; not at its ends.

    The first letter stays, people get that right; without or with another last one it may be a
    plural.
    """
    if name[-1] not in "s" and name[-1].isalpha():
        yield name + name[-1]
    for at in range(1, len(name) - 1):
        one, two = name[at], name[at + 1]
        if one.isalpha():
            yield name[:at] + one + name[at:]
            yield name[:at] + name[at + 1 :]
        if one.isalpha() and two.isalpha() and one != two:
            yield name[:at] + two + one + name[at + 2 :]
