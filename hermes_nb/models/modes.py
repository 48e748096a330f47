"""What may be done with a model's replies."""

from __future__ import annotations

from typing import Literal, get_args

from hermes_nb.core.errors import ConfigError

Mode = Literal["record", "replay", "auto", "off"]
"""Ask always and record; ask never; ask for what is not recorded; neither."""
MODES: tuple[Mode, ...] = get_args(Mode)


def mode_named(text: str) -> Mode:
    """Return the mode of that name; raise `ConfigError` for any other."""
    for mode in MODES:
        if text.strip().lower() == mode:
            return mode
    message = f"{text!r} is no cassette mode; use one of {', '.join(MODES)}"
    raise ConfigError(message)
