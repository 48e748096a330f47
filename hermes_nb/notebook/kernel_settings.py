"""A kernel's settings, from the Hermes directory and its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.core.messages import Json


@dataclass(slots=True)
class _Turn:
    """A turn's settings."""

    read: Settings | None = None
    ended: bool = False


_turn: ContextVar[_Turn | None] = ContextVar("hermes_nb_turn_settings", default=None)
"""The settings of the turn to which the current code belongs."""


class KernelSettings:
    """The current settings, read only once per turn.

    `overrides` returns the traitlets' values, which `%config` may change in any cell.
    """

    def __init__(self, overrides: Callable[[], Mapping[str, Json]] = dict) -> None:
        self._overrides = overrides
        self._chosen: dict[str, Json] = {}

    def now(self, **options: object) -> Settings:
        """Return the settings, read once per turn; `options` that are not None override them."""
        wished = {name: value for name, value in options.items() if value is not None}
        turn = _turn.get()
        if turn is not None and (wished or turn.ended):
            turn = None
        if turn is not None and turn.read is not None:
            return turn.read
        found = load_settings(overrides={**self._overrides(), **self._chosen, **wished})
        if turn is not None:
            turn.read = found
        return found

    def choose(self, key: str, value: object) -> None:
        """Set a value from now on; None restores the default. Raise `ConfigError` if invalid."""
        wanted = {**self._chosen, key: value}
        found = load_settings(overrides={**self._overrides(), **wanted})
        found.insist(*([] if value is None else [key]))
        self._chosen = wanted
        if (turn := _turn.get()) is not None:
            turn.read = None

    @contextmanager
    def read_once(self) -> Iterator[None]:
        """Read the settings only once during this block, which is a turn."""
        turn = _Turn()
        token = _turn.set(turn)
        try:
            yield
        finally:
            turn.ended = True
            _turn.reset(token)
