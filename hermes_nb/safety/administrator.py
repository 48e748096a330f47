"""The administrator's policy: settings for all users, read from a file that root owns.

The file is the first one found in `PLACES`; others are ignored. Users cannot influence its
location: environment variables, home directories and Jupyter paths are not used. If the file exists
but is invalid, all turns fail, so that a broken policy is never silently ignored. Invalid means
that a user other than root could change it, that it cannot be read, or that it has an unknown key.

The file is structured like a traitlets configuration in JSON and contains no code. A *family* is a
group of entries that a policy can control, such as the tools or the models. Its value is one state
for all entries, or a mapping of name patterns to states, in which `*` matches all other names. In a
family listed in `ALONE`, an entry that is forced on is the only one allowed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json
from hermes_nb.core.regular_files import Refused, read_regular

State = Literal["force-off", "force-on", "user-choice"]
FILE = "hermes_policy.json"
"""Name of the policy file."""
SECTION = "HermesPolicy"
"""The file's only top-level key."""
LARGEST = 1_000_000
"""Maximum size of the file in bytes."""
ANY = "*"
"""The pattern for everything not matched by another pattern."""
ALONE = {
    "modes": "approve",
    "models": "model",
    "endpoints": "base_url",
    "cassettes": "cassette",
    "memory_services": "memory.provider",
}
"""Families with one active entry at a time, and the setting that selects it."""
FORCED = frozenset({*ALONE, "tools", "learning"})
"""Families whose entries can be forced on. In other families, users cannot turn entries off."""
FAMILIES = FORCED | {"always", "gateway", "mcp", "network", "schedules", "skills"}
"""All families."""
PLAIN = frozenset({"always", "learning", "network", "schedules"})
"""Families with a single state and no patterns."""
FREE = {"modes": "never", "cassettes": "off"}
"""A family's most restrictive entry, which is always allowed."""
VALUES: Mapping[str, type] = {
    "audit": dict,
    "mcp_servers": dict,
    "settings": dict,
    "shared_skills": str,
    "skills_key": str,
}
"""The file's other keys, with their value types."""
NUDGES = ("memory.nudge_interval", "skills.creation_nudge_interval")
"""Settings for how often the background review runs."""
USUAL = 10
"""Turns or iterations between background reviews, if learning is forced on."""
_ROOT = 0


def _places() -> tuple[Path, ...]:
    """Return the folders that may contain the file: the system's and this environment's."""
    if os.name != "posix":
        return ()
    here = Path(__file__).resolve().parents  # PREFIX/lib/python3.x/site-packages/hermes_nb/safety
    prefixes = ["/", "/usr/local", *map(str, here[5:6]), sys.prefix]
    return tuple(Path(prefix, "etc", "jupyter") for prefix in dict.fromkeys(prefixes))


PLACES = _places()
"""Folders that may contain the file, in order of precedence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The contents of a policy file."""

    file: str = ""
    """The file's path. Empty if there is no policy."""
    families: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    """States by family and pattern."""
    values: Mapping[str, Json] = field(default_factory=dict)
    """Values of the other keys."""

    def __bool__(self) -> bool:
        """Return whether there is a policy."""
        return bool(self.file)

    def state(self, family: str, *names: str) -> State:
        """Return an entry's state. The first of its names to match a pattern decides.

        If several patterns match a name, the longest one wins.
        """
        patterns = self.families.get(family)
        if not patterns:
            return "user-choice"
        if family in ALONE and (forced := self.forced(family)):
            return "force-on" if any(_fits(forced[0], name) for name in names) else "force-off"
        if FREE.get(family) in names:
            return "user-choice"
        for name in names:
            if fits := [each for each in patterns if each != ANY and _fits(each, name)]:
                return patterns[max(fits, key=len)]
        return patterns.get(ANY, "user-choice")

    def forced(self, family: str) -> tuple[str, ...]:
        """Return the names of a family's entries that are forced on."""
        states = self.families.get(family, {})
        return tuple(name for name, state in states.items() if state == "force-on")

    def why(self, family: str, *names: str) -> str:
        """Return the reason an entry is not allowed, or "" if it is."""
        if self.state(family, *names) != "force-off":
            return ""
        what = f"{family}: {names[0]}" if names else family
        return f"the administrator does not allow it (`{what}`, {self.file})"

    def check(self, family: str, *names: str) -> None:
        """Raise `ConfigError` if an entry is not allowed."""
        if why := self.why(family, *names):
            raise ConfigError(why)

    def check_most(self, name: str, wanted: int | None, most: int) -> None:
        """Raise `ConfigError` if `wanted` exceeds `most` while the policy fixes the setting `name`.

        `most` is that setting's value.
        """
        if (wanted or 0) > most and name in self.settings:
            raise ConfigError(f"{name} must be at most {most}; {self.file} sets that limit")

    @property
    def settings(self) -> Mapping[str, Json]:
        """The settings that the policy fixes, by user-facing name."""
        found = dict(self.values.get("settings", {}))
        for family, name in ALONE.items():
            found.update((name, each) for each in self.forced(family))
        if (state := self.state("learning")) != "user-choice":
            found |= dict.fromkeys(NUDGES, USUAL if state == "force-on" else 0)
        return found

    @property
    def summary(self) -> str:
        """A one-line summary of the policy. It omits values, which may be confidential."""
        states = [
            f"{family} {name} {state}".replace(f" {ANY} ", " ")
            for family, patterns in self.families.items()
            for name, state in patterns.items()
        ]
        pinned = [f"{name} fixed" for name in self.values.get("settings", {})]
        rest = [name for name in self.values if name != "settings"]
        return f"{self.file}: {', '.join([*states, *pinned, *rest]) or 'no rules'}"


NONE = Policy()
"""No policy."""
_known: dict[Path, tuple[tuple[int, ...], Policy]] = {}
"""The policies read so far by path, each with its file's status at the time."""


@cache
def _files(places: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(place / FILE for place in places)


def policy() -> Policy:
    """Return the current policy. Raise `ConfigError` if the file is invalid.

    This costs a few `stat` calls if the file is unchanged, so callers needn't store the result.
    """
    for path in _files(PLACES):
        try:
            now = path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            if path.is_symlink():
                raise _unusable(path, "it is a broken symbolic link") from error
            continue
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from error
        stamp = (now.st_mtime_ns, now.st_ctime_ns, now.st_size, now.st_ino, now.st_dev)
        if path not in _known or _known[path][0] != stamp:
            _known[path] = stamp, _read(path)
        return _known[path][1]
    return NONE


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"the administrator's policy {path} cannot be used, so nothing runs: {why}")


def _read(path: Path) -> Policy:
    if loose := not_roots(path):
        raise _unusable(path, loose)
    try:
        document = json.loads(read_regular(path, LARGEST)[0])
    except (OSError, Refused, ValueError, RecursionError) as error:
        raise _unusable(path, str(error)) from error
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict) or len(document) != 1:
        raise _unusable(path, f'it must be an object {{"{SECTION}": {{…}}}}')
    families: dict[str, Mapping[str, State]] = {}
    values: dict[str, Json] = {}
    for key, value in section.items():
        if key in FAMILIES:
            families[key] = _states(path, key, value)
        elif key in VALUES and isinstance(value, VALUES[key]):
            values[key] = value
        else:
            near = difflib.get_close_matches(key, [*FAMILIES, *VALUES], n=1, cutoff=0)
            right = (
                f"it must be a {VALUES[key].__name__}"
                if key in VALUES
                else f"did you mean {near[0]!r}?"
            )
            raise _unusable(path, f"{key!r} is not valid: {right}")
    for family in FREE:  # a fixed setting is forced on, so no command can change it either
        if (name := ALONE[family]) in values.get("settings", {}):
            one = str(values["settings"][name])
            states = {**families.get(family, {}), one: "force-on"}
            if families.get(family, {}).get(one, "force-on") != "force-on":
                raise _unusable(path, f"{family} forbids the value that `settings` pins for {name}")
            families[family] = _states(path, family, states)
    if "shared_skills" in values and not Path(values["shared_skills"]).is_absolute():
        raise _unusable(path, "shared_skills is not an absolute path")
    return Policy(file=str(path), families=families, values=values)


def _states(path: Path, family: str, given: Json) -> Mapping[str, State]:
    """Return a family's states by pattern. Raise `ConfigError` if one is invalid."""
    states = given if isinstance(given, dict) else {ANY: given}
    if family in PLAIN and states.keys() != {ANY}:
        raise _unusable(path, f"{family} takes a single state, without names")
    for pattern, state in states.items():
        if state not in get_args(State):
            one_of = ", ".join(get_args(State))
            raise _unusable(path, f"{family}: {pattern} is {state!r}; use one of {one_of}")
        loose = pattern != ANY and not re.match("[a-z]+://|added:|proxy:", pattern.lower())
        if family == "endpoints" and loose:
            raise _unusable(
                path, f"endpoints: {pattern} is not a URL; use one such as https://HOST/v1"
            )
        named = family == "learning" or not set("*?[") & set(pattern)
        if state == "force-on" and not (family in FORCED and named):
            text = (
                "patterns are not allowed; use the exact name"
                if family in FORCED
                else "no setting can turn it off"
            )
            raise _unusable(path, f"{family}: {pattern} cannot be force-on: {text}")
    if family in ALONE and list(states.values()).count("force-on") > 1:
        raise _unusable(path, f"{family}: only one can be force-on")
    return states


def _fits(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name. The parts of a URL are matched separately.

    A `*` in the host therefore cannot extend into another host's path, and a `*` for the port
    cannot turn an allowed host into the user name before an `@`.
    """
    pattern, name = pattern.lower(), name.lower()
    if "://" not in pattern:
        return fnmatchcase(name, pattern)
    try:
        wanted, given = urlsplit(pattern), urlsplit(name)
    except ValueError:
        return False
    host = given.netloc.rpartition("@")[2]
    same = wanted.scheme == given.scheme and fnmatchcase(host, wanted.netloc)
    return same and fnmatchcase(given.path.rstrip("/"), wanted.path.rstrip("/"))


def not_roots(path: Path) -> str:
    """Return the reason a user other than root could change a path, or "" if only root can.

    Every part of the path must belong to root and must not be writable by this process. If this
    process runs as root, no part may be world-writable.
    """
    whole, real = path.absolute(), Path(os.path.realpath(path))
    for part in dict.fromkeys([whole, *whole.parents, real, *real.parents]):
        try:
            status = part.lstat()
        except OSError as error:
            return f"{part}: {error.strerror}"
        if status.st_uid != _ROOT:
            return f"{part} does not belong to root"
        # In a sticky folder, only the owner can replace a file.
        sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
        if stat.S_ISLNK(status.st_mode) or sticky:
            continue
        anybody = bool(status.st_mode & stat.S_IWOTH)
        if anybody if os.geteuid() == _ROOT else os.access(part, os.W_OK):
            return f"{part} can be written by users other than root"
    return ""
