"""The administrator's policy: what is settled for everybody, in a file that root owns.

The first of `PLACES` that has the file counts, alone. Where it lies is asked of nothing that is the
user's: no variable, no home, no path of Jupyter's. A file that is there and does not count (another
than root could write it, it cannot be read, it has a key that nothing reads) stops turns: a lock
that is open without a word is worse than none.

It is data in the form of a traitlets configuration, and no code. A family is a state, or states by
pattern; `*` is what no other pattern fits. In `ALONE` families what is forced on is all there is.
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
SECTION = "HermesPolicy"
LARGEST = 1_000_000
"""Bytes of the file."""
ANY = "*"
ALONE = {
    "modes": "approve",
    "models": "model",
    "endpoints": "base_url",
    "cassettes": "cassette",
    "memory_services": "memory.provider",
}
"""Families of which one thing holds at a time, each with the setting that says which."""
FORCED = frozenset({*ALONE, "tools", "learning"})
"""Families in which something can be forced on; nothing of a user's takes the others away."""
FAMILIES = FORCED | {"always", "gateway", "mcp", "network", "schedules", "skills"}
PLAIN = frozenset({"always", "learning", "network", "schedules"})
"""Families without names: a state, and no patterns."""
FREE = {"modes": "never", "cassettes": "off"}
"""What cannot be taken away: the least there is."""
VALUES: Mapping[str, type] = {
    "audit": dict,
    "mcp_servers": dict,
    "settings": dict,
    "shared_skills": str,
    "skills_key": str,
}
"""The other keys, and what their values are."""
NUDGES = ("memory.nudge_interval", "skills.creation_nudge_interval")
USUAL = 10
"""Turns and iterations between two looks back, where learning is forced on."""
_ROOT = 0


def _places() -> tuple[Path, ...]:
    """Return the folders that may have the file: the system's, and those of this environment."""
    if os.name != "posix":
        return ()
    here = Path(__file__).resolve().parents  # PREFIX/lib/python3.x/site-packages/hermes_nb/safety
    prefixes = ["/", "/usr/local", *map(str, here[5:6]), sys.prefix]
    return tuple(Path(prefix, "etc", "jupyter") for prefix in dict.fromkeys(prefixes))


PLACES = _places()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a file says: states by pattern for each family, and the `values` of the other keys."""

    file: str = ""
    families: Mapping[str, Mapping[str, State]] = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Say whether there is one."""
        return bool(self.file)

    def state(self, family: str, *names: str) -> State:
        """Return what is settled for a thing, by the first of its names that a pattern fits.

        Of several patterns the longest counts.
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
        """Return what is forced on in a family, by name."""
        states = self.families.get(family, {})
        return tuple(name for name, state in states.items() if state == "force-on")

    def why(self, family: str, *names: str) -> str:
        """Return why a thing is not to be had, "" where it is."""
        if self.state(family, *names) != "force-off":
            return ""
        what = f"{family}: {names[0]}" if names else family
        return f"the administrator does not allow it (`{what}`, {self.file})"

    def check(self, family: str, *names: str) -> None:
        """Raise `ConfigError` for a thing that is not to be had."""
        if why := self.why(family, *names):
            raise ConfigError(why)

    def check_most(self, name: str, wanted: int | None, most: int) -> None:
        """Raise `ConfigError` for more than a setting says that nobody else sets."""
        if (wanted or 0) > most and name in self.settings:
            raise ConfigError(f"{name} is {most} at most, as {self.file} says")

    @property
    def settings(self) -> Mapping[str, Json]:
        """The settings that nobody else sets, by the names that users give them."""
        found = dict(self.values.get("settings", {}))
        for family, name in ALONE.items():
            found.update((name, each) for each in self.forced(family))
        if (state := self.state("learning")) != "user-choice":
            found |= dict.fromkeys(NUDGES, USUAL if state == "force-on" else 0)
        return found

    @property
    def told(self) -> str:
        """What it settles, in one line without values: some are nobody's business."""
        states = [
            f"{family} {name} {state}".replace(f" {ANY} ", " ")
            for family, patterns in self.families.items()
            for name, state in patterns.items()
        ]
        pinned = [f"{name} settled" for name in self.values.get("settings", {})]
        rest = [name for name in self.values if name != "settings"]
        return f"{self.file}: {', '.join([*states, *pinned, *rest]) or 'nothing is settled'}"


NONE = Policy()
_known: dict[Path, tuple[tuple[int, ...], Policy]] = {}


@cache
def _files(places: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(place / FILE for place in places)


def policy() -> Policy:
    """Return the policy as it is now; raise `ConfigError` for a file that does not count.

    It costs a few calls of `stat`: whoever acts on it asks for it, and is given it by nobody.
    """
    for path in _files(PLACES):
        try:
            now = path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            if path.is_symlink():
                raise _unusable(path, "it is a link that leads nowhere") from error
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
        raise _unusable(path, f'it is no object {{"{SECTION}": {{…}}}}')
    families: dict[str, Mapping[str, State]] = {}
    values: dict[str, Json] = {}
    for key, value in section.items():
        if key in FAMILIES:
            families[key] = _states(path, key, value)
        elif key in VALUES and isinstance(value, VALUES[key]):
            values[key] = value
        else:
            near = difflib.get_close_matches(key, [*FAMILIES, *VALUES], n=1, cutoff=0)
            right = f"it is a {VALUES[key].__name__}" if key in VALUES else f"{near[0]!r}?"
            raise _unusable(path, f"nothing reads {key!r} as it is; {right}")
    for family in FREE:  # what is pinned is forced on: no command chooses another either
        if (name := ALONE[family]) in values.get("settings", {}):
            one = str(values["settings"][name])
            states = {**families.get(family, {}), one: "force-on"}
            if families.get(family, {}).get(one, "force-on") != "force-on":
                raise _unusable(path, f"{family} forbids what `settings` has as {name}")
            families[family] = _states(path, family, states)
    if "shared_skills" in values and not Path(values["shared_skills"]).is_absolute():
        raise _unusable(path, "shared_skills is no absolute path")
    return Policy(file=str(path), families=families, values=values)


def _states(path: Path, family: str, given: Json) -> Mapping[str, State]:
    """Return the states of a family by pattern; raise `ConfigError` for what makes no sense."""
    states = given if isinstance(given, dict) else {ANY: given}
    if family in PLAIN and states.keys() != {ANY}:
        raise _unusable(path, f"{family} is a state, without names")
    for pattern, state in states.items():
        if state not in get_args(State):
            one_of = ", ".join(get_args(State))
            raise _unusable(path, f"{family}: {pattern} is {state!r}; use one of {one_of}")
        loose = pattern != ANY and not re.match("[a-z]+://|added:|proxy:", pattern.lower())
        if family == "endpoints" and loose:
            raise _unusable(path, f"endpoints: {pattern} is no address; one begins with https://")
        named = family == "learning" or not set("*?[") & set(pattern)
        if state == "force-on" and not (family in FORCED and named):
            told = "it has to be named" if family in FORCED else "no setting takes it from anybody"
            raise _unusable(path, f"{family}: {pattern} cannot be force-on: {told}")
    if family in ALONE and list(states.values()).count("force-on") > 1:
        raise _unusable(path, f"{family}: only one can be force-on")
    return states


def _fits(pattern: str, name: str) -> bool:
    """Say whether a name is one that a pattern means; of addresses each part by itself.

    So that no `*` in a host reaches into the path of an address elsewhere, and with one for a
    port what is allowed is no name before an `@`.
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
    """Return what of a path another than root could change, "" for nothing.

    For this process: what it may write counts, whatever the modes say. Root may write all.
    """
    whole, real = path.absolute(), Path(os.path.realpath(path))
    for part in dict.fromkeys([whole, *whole.parents, real, *real.parents]):
        try:
            status = part.lstat()
        except OSError as error:
            return f"{part}: {error.strerror}"
        if status.st_uid != _ROOT:
            return f"{part} does not belong to root"
        # In a sticky folder nobody but its owner exchanges a file.
        sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
        if stat.S_ISLNK(status.st_mode) or sticky:
            continue
        anybody = bool(status.st_mode & stat.S_IWOTH)
        if anybody if os.geteuid() == _ROOT else os.access(part, os.W_OK):
            return f"{part} can be written by others than root"
    return ""
