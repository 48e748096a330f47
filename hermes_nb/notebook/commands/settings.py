"""`%hermes config`: every setting with its value and where it comes from, and how to change one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import yaml

from hermes_nb.app.config import Settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import one_line
from hermes_nb.notebook.display.wording import grid
from hermes_nb.notebook.resident import Resident
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

SECRET = ("api_key",)
DEFAULT = "default"
"""The word that takes back what was set for this kernel."""


def config(resident: Resident, words: str) -> str:
    """Show the settings, one of them, or set one until the kernel ends."""
    key, _, value = words.strip().partition(" ")
    settings = resident.settings()
    if not key:
        rows = (_row(settings, name) for name in sorted(settings.values))
        table = grid(("setting", "value", "from"), rows)
        return (
            f"{table}\n\n`%hermes config KEY VALUE` sets one until the kernel ends, "
            f"`KEY {DEFAULT}` takes that back. For good: `hermes_nb:` in "
            f"{code_span(str(settings.home / 'config.yaml'))}."
        )
    if key not in settings.values:
        near = difflib.get_close_matches(key, settings.values, n=1)
        hint = f"did you mean {near[0]}?" if near else "`%hermes config` lists them"
        message = f"there is no setting {key!r}; {hint}"
        raise ConfigError(message)
    if value:
        _set(resident, key, value.strip())
        settings = resident.settings()
    return grid(("setting", "value", "from"), [_row(settings, key)])


def _set(resident: Resident, key: str, text: str) -> None:
    if key in SECRET:
        message = f"{key} is not set in a notebook; it belongs in the environment or in .env"
        raise ConfigError(message)
    if text == DEFAULT:
        resident.configure(key, None)
        return
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if isinstance(value, bool) or value is None:
        value = text  # `off` and `none` are words here; what is a switch reads them itself
    resident.configure(key, value)


def _row(settings: Settings, key: str) -> tuple[str, str, str]:
    value = settings.values[key]
    if key in SECRET:
        shown = "set, not shown" if value else ""
    elif isinstance(value, Mapping):
        shown = ", ".join(map(str, value))
    else:
        shown = "" if value is None or value == () else str(value)
    source = settings.sources.get(key, "default")
    text = escape(one_line(visible(redact(shown)), 80))
    return code_span(key), text, escape("this kernel" if source == "given here" else source)
