"""The home directory shared with the command-line Hermes Agent: where things are, never made here.

`HERMES_HOME` names it, `~/.hermes` is the default. Looking up a path creates nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hermes_nb.core.errors import ConfigError

_QUOTED = re.compile(r"""(['"])(.*?)\1\s*(?:#.*)?""")
_COMMENT = re.compile(r"(?:^|\s)#")


def home_directory(explicit: str | Path | None = None) -> Path:
    """Return the home directory as an absolute path; raise `ConfigError` where there is none."""
    chosen = explicit or os.environ.get("HERMES_HOME")
    try:
        home = Path(chosen).expanduser() if chosen else Path.home() / ".hermes"
    except RuntimeError as error:
        message = "there is no home directory; set HERMES_HOME to a folder of yours"
        raise ConfigError(message) from error
    home = home.absolute()
    if home.exists() and not home.is_dir():
        message = f"HERMES_HOME {str(home)!r} is a file; point it to a folder"
        raise ConfigError(message)
    return home


def read_dotenv(home: Path) -> dict[str, str]:
    """Return the `KEY=value` lines of the home's `.env`; a missing or unreadable file is empty."""
    try:
        text = (home / ".env").read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return {}
    values: dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.strip().removeprefix("export ").strip()
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values[key.strip()] = _dotenv_value(value.strip())
    return values


def _dotenv_value(text: str) -> str:
    """Return a value as Hermes Agent reads it: without quotes, and without a comment behind it."""
    if quoted := _QUOTED.fullmatch(text):
        return quoted[2]
    return _COMMENT.split(text, maxsplit=1)[0].rstrip()
