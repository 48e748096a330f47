"""A kernel's settings, from the Hermes directory and its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.core.messages import Json


class KernelSettings:
    """The current settings, read only once per turn.

    `overrides` returns the traitlets' values, which `%config` may change in any cell.
    """

    def __init__(self, overrides: Callable[[], Mapping[str, Json]] = dict) -> None:
        self._overrides = overrides
        self._chosen: dict[str, Json] = {}
        self._read: Settings | None = None
        self._in_turn = False

    def now(self, **options: object) -> Settings:
        """Return the settings, read once per turn; `options` that are not None override them."""
        wished = {name: value for name, value in options.items() if value is not None}
        if self._read is not None and not wished:
            return self._read
        found = load_settings(overrides={**self._overrides(), **self._chosen, **wished})
        if self._in_turn and not wished:
            self._read = found
        return found

    def choose(self, key: str, value: object) -> None:
        """Set a value from now on; None restores the default. Raise `ConfigError` if invalid."""
        wanted = {**self._chosen, key: value}
        found = load_settings(overrides={**self._overrides(), **wanted})
        found.insist(*([] if value is None else [key]))
        self._chosen, self._read = wanted, None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Read the settings only once during this block, which is a turn."""
        self._in_turn = True
        try:
            yield
        finally:
            self._in_turn, self._read = False, None
