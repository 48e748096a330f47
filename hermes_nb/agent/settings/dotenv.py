"""The Hermes directory's `.env`: reads variables as Hermes Agent does, sets and removes them."""

from __future__ import annotations

import re
from pathlib import Path

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import locked, make_private, write_atomic

_QUOTED = re.compile(r"""(['"])(.*?)\1\s*(?:#.*)?""")
_COMMENT = re.compile(r"(?:^|\s)#")


def read_dotenv(home: Path) -> dict[str, str]:
    """Return the variables in `.env`; a missing or unreadable file counts as empty."""
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


def write_dotenv(home: Path, name: str, value: str | None) -> None:
    """Set or remove a variable in `.env`; the other lines stay, and the file's mode becomes 0600.

    Raises OSError, and `ConfigError` for a value that cannot be represented in the file.
    """
    forms = [form for form in (value, f'"{value}"', f"'{value}'") if form]
    written = next((form for form in forms if _dotenv_value(form) == value), "")
    if value is not None and not written:
        raise ConfigError(f"{name} cannot stand in .env as it is; set it in the environment")
    make_private(home)
    file = home / ".env"
    own = re.compile(rf"\s*(?:export\s+)?{re.escape(name)}\s*=".encode())
    with locked(file):
        there = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        lines = [line for line in there if not own.match(line)]
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        lines += [f"{name}={written}\n".encode()] if value is not None else []
        if there:
            file.chmod(0o600)
        write_atomic(file, b"".join(lines), mode=0o600)


def _dotenv_value(text: str) -> str:
    """Return a value as Hermes Agent reads it: without quotes or a trailing comment."""
    if quoted := _QUOTED.fullmatch(text):
        return quoted[2]
    return _COMMENT.split(text, maxsplit=1)[0].rstrip()
