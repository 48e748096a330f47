"""The sources of settings: the caller, the environment and the Hermes directory.

`HERMES_HOME` is the path of the Hermes directory, which is shared with the Hermes Agent command
line; the default is `~/.hermes`. Looking up a path does not create it.

`HERMES_NB_CEILING` is the highest approval mode in this process, and code in the process cannot
change it: cells may choose any mode up to it without asking, but none above it. If it is not set,
the mode comes from the user or from the value of `HERMES_NB_APPROVE` when the process started. On
Linux, that environment is read from `/proc`; on other systems, it is read when this module is
imported.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hermes_nb.agent.settings.declare import Setting, declared
from hermes_nb.agent.settings.files import dig
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.safety.administrator import NONE, Policy
from hermes_nb.safety.guard import MODES, Mode
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Group = TypeVar("Group", bound="DataclassInstance")

THEIRS = "config.yaml"
"""The source of Hermes Agent's own keys."""


def _started_with() -> dict[str, str]:
    try:
        pairs = Path("/proc/self/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return dict(os.environ)
    return dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)


_ENVIRONMENT = _started_with()
STARTED = _ENVIRONMENT.get("HERMES_NB_APPROVE", "")
"""The value of `HERMES_NB_APPROVE` when the process started, or "" if unset."""
CEILING: Mode | None = next((m for m in MODES if m == _ENVIRONMENT.get("HERMES_NB_CEILING")), None)
"""The highest approval mode in this process, or None for no limit."""

REDACTED = _ENVIRONMENT.get("HERMES_NB_REDACT_REQUESTS", "").lower() in ("1", "true", "on", "yes")
"""Whether request redaction was on when the process started; no setting can turn it off."""


def within(mode: Mode, bound: Mode | None = None) -> Mode:
    """Return the lower of a mode and a bound; the default bound is this process's ceiling."""
    return min(mode, bound or CEILING or "all", key=MODES.index)


class Picker:
    """Looks up settings in the sources, in order of precedence, and records each one's source.

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
        if own is not None and not isinstance(own, Mapping):
            raise _invalid("hermes_nb", own, "config.yaml", "a group of keys")
        self._own: Mapping[str, Json] = own or {}
        self.sources: dict[str, str] = {}
        self.values: dict[str, Json] = {}
        """Every setting that was looked up, by the name that users know."""
        self.declared: dict[str, Setting] = {}
        """The declarations of these settings."""
        self.notes: list[str] = []
        """Warnings about settings that cannot be read."""

    def group(self, group: type[Group], **given: object) -> Group:
        """Return a dataclass with all its settings and groups read, except the `given` fields.

        Raises:
            ConfigError: a value is invalid; the message names its key, its source and the valid
            values
        """
        known = declared(group)
        for each in fields(group):
            inner: object = each.default_factory
            if each.name in known:
                given[each.name] = self.value(known[each.name])
            elif each.name not in given and isinstance(inner, type) and is_dataclass(inner):
                given[each.name] = self.group(inner)
        return group(**given)

    def value(self, setting: Setting) -> object:
        """Return a setting's value; raise `ConfigError` if it is invalid."""
        key = setting.key
        places = self._places(setting)
        given = places[2:3] if setting.file_only else places
        found, source = next((each for each in given if each[0] not in (None, "")), (None, ""))
        if source == THEIRS and setting.theirs is not None:
            found = setting.theirs(found)
        if key in self._pinned and not setting.file_only:
            pinned, policy = self._pinned[key], f"policy {self.settled.file}"
            if source and found != pinned:
                self.sources[key] = source
                self.hold(key, f"it is set by {self.settled.file}")
            found, source = pinned, policy
        if source:
            self.sources[key] = source
        self.declared[key] = setting
        self.values[key] = found if source else setting.default
        try:
            return setting.converted(found) if source else setting.default
        except ValueError as error:
            shown = "not valid" if setting.secret else found
            raise _invalid(key, shown, source, str(error)) from error

    def _places(self, setting: Setting) -> list[tuple[Json, str]]:
        """Return a setting's value in each source, or None if unset, with the source's name."""
        return [
            (self._overrides.get(setting.key), "given here"),
            (self._env.get(setting.variable), setting.variable),
            (dig(self._own, setting.path), "config.yaml, hermes_nb"),
            (dig(self._document, setting.foreign_path), THEIRS),
        ]

    def beside(self, setting: Setting, other: Setting) -> object:
        """Return a setting's value ignoring the sources that take precedence over that of `other`.

        `other` must have a value. An invalid value counts as unset: it is overridden.
        """
        if setting.key in self._pinned:
            return setting.converted(self._pinned[setting.key])
        here = [value not in (None, "") for value, _ in self._places(other)].index(True)
        values = (value for value, _ in self._places(setting)[here:] if value not in (None, ""))
        try:
            return setting.converted(next(values, setting.default))
        except ValueError:
            return setting.default

    def merged(self, name: str) -> Mapping[str, Json]:
        """Return a group of config.yaml, merged from the top level and ours, which has priority."""
        given = (self._document.get(name), self._own.get(name))
        groups = (each for each in given if isinstance(each, Mapping))
        found = {str(key): value for group in groups for key, value in group.items()}
        self.values[name] = ", ".join(found)  # the rest may have keys
        return found

    def hold(self, key: str, why: str) -> None:
        """Record that a setting's value is overridden, and why."""
        source = self.sources.get(key, "config.yaml")
        self.held[key] = f"{key} ({source}) is ignored: {why}"

    def unknown(self) -> tuple[str, ...]:
        """Return the notes, and a warning for each key that is not a setting; call this last.

        Raises `ConfigError` if the policy sets a name that is not a setting.
        """
        settled = f"policy {self.settled.file}"
        if missing := [key for key in self._pinned if self.sources.get(key) != settled]:
            message = f"`settings` in {self.settled.file}: there is no setting {missing[0]!r}"
            raise ConfigError(message)
        return (*self.notes, *(_unknown(key, self.values) for key in self._unread()))

    def _unread(self) -> Iterator[str]:
        groups = {name.partition(".")[0] for name in self.values if "." in name}
        for key, value in self._own.items():
            if key in groups and isinstance(value, Mapping):
                # A group inside a group contains a memory provider's options.
                names = (f"{key}.{name}" for name in value if not isinstance(value[name], Mapping))
                yield from (name for name in names if name not in self.values)
            elif key not in self.values:
                yield str(key)


def _invalid(key: str, value: object, source: str, valid: str) -> ConfigError:
    shown = redact(one_line(repr(value), 60))
    return ConfigError(f"{key} is {shown} ({source}); expected {valid}")


def _unknown(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "`%hermes config` lists the settings"
    return f"config.yaml: unknown key `{one_line(key, 60)}` under `hermes_nb:`; {hint}"


def home_directory(explicit: str | Path | None = None) -> Path:
    """Return the absolute path of the Hermes directory; raise `ConfigError` if it is invalid."""
    chosen = explicit or os.environ.get("HERMES_HOME")
    try:
        home = Path(chosen).expanduser() if chosen else Path.home() / ".hermes"
    except RuntimeError as error:
        message = "you have no home directory; set HERMES_HOME to a folder that you can write to"
        raise ConfigError(message) from error
    home = home.absolute()
    if home.exists() and not home.is_dir():
        raise ConfigError(f"HERMES_HOME {str(home)!r} is a file; it must be a directory")
    return home
