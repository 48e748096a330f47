"""The settings of one kernel: what its user chose in it, in front of everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hermes_nb.app.config import Settings, load_settings


class Choices:
    """What was chosen by commands; `overrides` are the traitlets' values, asked for each time."""

    def __init__(self, overrides: Callable[[], Mapping[str, Any]]) -> None:
        self._overrides = overrides
        self._chosen: dict[str, Any] = {}

    def settings(self, **options: object) -> Settings:
        """Return the settings as they are now; `options` that are not None come first."""
        wished = {name: value for name, value in options.items() if value is not None}
        return load_settings(overrides={**self._overrides(), **self._chosen, **wished})

    def choose(self, key: str, value: object) -> None:
        """Choose a value from now on, None for what it would be without; raise `ConfigError`.

        What cannot be used is not chosen.
        """
        wanted = {**self._chosen, key: value}
        load_settings(overrides={**self._overrides(), **wanted})
        self._chosen = wanted
