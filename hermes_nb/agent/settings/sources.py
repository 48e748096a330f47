"""Where settings come from: the caller, the environment and the Hermes directory.

`HERMES_HOME` names the Hermes directory, which is shared with the Hermes Agent command line; the
default is `~/.hermes`. Looking up a path creates nothing.

`HERMES_NB_CEILING` is the highest approval mode in this process, and code in the process cannot
change it: cells may choose modes up to it without asking, and none above it. Without it, only the
user may choose a mode, or the value of `HERMES_NB_APPROVE` at the start of the process. On Linux
that environment is read from `/proc`; on other systems it is read when this module is imported.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from hermes_nb.agent.settings.config_file import dig
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.safety.administrator import NONE, Policy
from hermes_nb.safety.guard import MODES, Mode

MOST = 1e12
"""Upper bound of every numeric setting."""


def _started_with() -> dict[str, str]:
    try:
        pairs = Path("/proc/self/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return dict(os.environ)
    return dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)


_ENVIRONMENT = _started_with()
STARTED = _ENVIRONMENT.get("HERMES_NB_APPROVE", "")
"""The value of `HERMES_NB_APPROVE` when the process started, "" if unset."""
CEILING: Mode | None = next((m for m in MODES if m == _ENVIRONMENT.get("HERMES_NB_CEILING")), None)
"""The highest approval mode in this process, None for no limit."""

REDACTED = _ENVIRONMENT.get("HERMES_NB_REDACT_REQUESTS", "").lower() in ("1", "true", "on", "yes")
"""Whether the process started with redaction of requests on; no setting can turn it off."""


def within(mode: Mode, bound: Mode | None = None) -> Mode:
    """Return the lower of a mode and a bound, by default this process's ceiling."""
    return min(mode, bound or CEILING or "all", key=MODES.index)


class Picker:
    """Looks up a setting in the sources, in order of precedence, and records the source of each.

    Args:
        overrides: the caller's values
        env: environment variables
        document: the contents of config.yaml
        settled: the administrator's policy, whose values override all sources
    """

    def __init__(
        self,
        overrides: Mapping[str, Json],
        env: Mapping[str, str],
        document: Mapping[str, Json],
        settled: Policy = NONE,
    ) -> None:
        self._overrides, self._env, self._document = overrides, env, document
        self.settled, self._pinned = settled, settled.settings
        self.held: dict[str, str] = {}
        """A message for each setting whose value the policy overrides, by name."""
        own = document.get("hermes_nb")
        self._own: Mapping[str, Json] = own if isinstance(own, Mapping) else {}
        self.sources: dict[str, str] = {}
        self.values: dict[str, Json] = {}
        """Every setting that was looked up, by the name that users give it."""

    def __call__(self, name: str, *, foreign: tuple[str, ...] = (), default: Json = "") -> Json:
        """Return a setting; `foreign` is its path among Hermes Agent's own keys."""
        return self._first(name, (name,), foreign, default)

    def at(self, group: str, name: str, *, default: Json) -> Json:
        """Return the setting `group.name`, which Hermes Agent may have under the same name."""
        return self._first(f"{group}.{name}", (group, name), (group, name), default)

    def _first(
        self, key: str, path: tuple[str, ...], foreign: tuple[str, ...], default: Json
    ) -> Json:
        """Return the first value found for a key; the paths are its places in config.yaml."""
        variable = f"HERMES_NB_{'_'.join(path)}".upper()
        found, source = default, ""
        for value, where in (
            (self._overrides.get(key), "given here"),
            (self._env.get(variable), variable),
            (dig(self._own, path), "config.yaml, hermes_nb"),
            (dig(self._document, foreign), "config.yaml"),
        ):
            if value not in (None, ""):
                found, source = value, where
                break
        if source:
            self.sources[key] = source
        if key in self._pinned:
            if source and found != self._pinned[key]:
                self.hold(key, f"{self.settled.file} says what it is")
            found, self.sources[key] = self._pinned[key], f"policy {self.settled.file}"
        self.values[key] = found
        return found

    def hold(self, key: str, why: str) -> None:
        """Record that a setting's value is overridden, and why."""
        source = self.sources.get(key, "config.yaml")
        self.held[key] = f"{key} ({source}) does not count: {why}"

    def share(
        self, group: str, name: str, default: float, *, least: float, most: float, wanted: str = ""
    ) -> float:
        """Return the setting `group.name` as a number.

        Args:
            group: the setting's group
            name: the setting's name within the group
            default: the value if it is not set
            least: the smallest valid value
            most: the largest valid value
            wanted: the valid values in words, for the error's text

        Raises:
            ConfigError: the value is not a number in that range
        """
        value = self.at(group, name, default=default)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if isinstance(value, bool) or not least <= number <= most:
            self._refuse(f"{group}.{name}", value, wanted or f"{least:g} to {most:g}")
        return number

    def whole(self, group: str, name: str, default: int, *, least: int = 0) -> int:
        """Return a whole number; raise `ConfigError` for anything else, or one below `least`."""
        wanted = f"a whole number from {least} to a trillion"
        number = self.share(group, name, default, least=least, most=MOST, wanted=wanted)
        if not number.is_integer():
            self._refuse(f"{group}.{name}", number, wanted)
        return int(number)

    def switch(self, group: str, name: str, *, default: bool) -> bool:
        """Return the boolean setting `group.name`."""
        return _on(self.at(group, name, default=default))

    def number(self, name: str, foreign: tuple[str, ...], default: int | None) -> int | None:
        """Return a whole number above 0; raise `ConfigError` for anything else."""
        value = self(name, foreign=foreign, default=default)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = 0.0
        if isinstance(value, bool) or not (1 <= number <= MOST and number.is_integer()):
            self._refuse(name, value, "a whole number above 0")
        return int(number)

    def limit(self, group: str, name: str) -> float | None:
        """Return a limit above 0, None for no limit; raise `ConfigError` for anything else."""
        value = self.at(group, name, default=None)
        if value is None:
            return None
        wanted = "a number above 0, at most a trillion"
        return self.share(group, name, 0.0, least=1e-9, most=MOST, wanted=wanted)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean setting."""
        return _on(self(name, default=default))

    def unknown(self) -> tuple[str, ...]:
        """Return a warning for each key below `hermes_nb:` that is not a setting; call it last.

        Raises `ConfigError` if the policy sets a name that is not a setting.
        """
        settled = f"policy {self.settled.file}"
        if missing := [key for key in self._pinned if self.sources.get(key) != settled]:
            message = f"`settings` in {self.settled.file}: there is no setting {missing[0]!r}"
            raise ConfigError(message)
        return tuple(_unknown(key, self.values) for key in self._unread())

    def _unread(self) -> Iterator[str]:
        groups = {name.partition(".")[0] for name in self.values if "." in name}
        for key, value in self._own.items():
            if key in groups and isinstance(value, Mapping):
                # A group within a group holds a memory provider's options.
                names = (f"{key}.{name}" for name in value if not isinstance(value[name], Mapping))
                yield from (name for name in names if name not in self.values)
            elif key not in self.values:
                yield str(key)

    def _refuse(self, key: str, value: object, wanted: str) -> NoReturn:
        raise ConfigError(f"{key} is {value!r} ({self.sources.get(key)}); use {wanted}")


def _unknown(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "`%hermes config` lists the settings"
    return f"config.yaml: nothing reads `{one_line(key, 60)}` below `hermes_nb:`; {hint}"


def _on(value: object) -> bool:
    return str(value).strip().lower() not in ("0", "false", "no", "off")


def home_directory(explicit: str | Path | None = None) -> Path:
    """Return the absolute path of the Hermes directory; raise `ConfigError` if it is invalid."""
    chosen = explicit or os.environ.get("HERMES_HOME")
    try:
        home = Path(chosen).expanduser() if chosen else Path.home() / ".hermes"
    except RuntimeError as error:
        message = "there is no home directory; set HERMES_HOME to a folder of yours"
        raise ConfigError(message) from error
    home = home.absolute()
    if home.exists() and not home.is_dir():
        raise ConfigError(f"HERMES_HOME {str(home)!r} is a file; point it to a folder")
    return home
