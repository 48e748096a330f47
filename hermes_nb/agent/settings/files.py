"""The settings files in the Hermes directory: config.yaml and .env.

Only the MCP servers in config.yaml and variables in .env are edited; everything else is left
unchanged. `.env` is parsed as in Hermes Agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line

_QUOTED = re.compile(r"""(['"])(.*?)\1\s*(?:#.*)?""")
_COMMENT = re.compile(r"(?:^|\s)#")


def dig(document: Mapping[str, Json], path: tuple[str, ...]) -> Json:
    """Return the value at a path of keys, or None if it is missing or the path is empty."""
    value: Json = document if path else None
    for key in path:
        if not (value and isinstance(value, Mapping)):
            return None
        value = value.get(key)
    return value


def read_yaml(path: Path) -> Mapping[str, Json]:
    """Return the document, or {} if the file is missing; raise `ConfigError` if it is invalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return _parsed(path, text)


@lru_cache(maxsize=2)
def _parsed(path: Path, text: str) -> Mapping[str, Json]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        where = f"line {mark.line + 1}: {problem}" if mark else one_line(str(error), 200)
        raise ConfigError(f"{path} is not valid YAML: {where}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} must contain a mapping (`key: value`) at the top level")
    return document


def write_server(home: Path, name: str, server: Mapping[str, Json] | None) -> None:
    """Set or remove an MCP server under `hermes_nb:` in config.yaml; leave the rest unchanged.

    Raises:
        OSError: the file cannot be read or written
        ConfigError: the file is not in block style, or the server to remove is missing
    """
    import yaml

    make_private(home)
    file = home / "config.yaml"
    with locked(file):
        document = read_yaml(file)
        servers = dict(dig(document, ("hermes_nb", "mcp_servers")) or {})
        if server is None and name not in servers:
            message = f"there is no {name!r} under `hermes_nb: mcp_servers:` in {file}"
            raise ConfigError(message)
        servers[name] = server
        servers = {key: value for key, value in servers.items() if value is not None}
        lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        first, last, indent = _place(yaml.compose("".join(lines)), lines)
        head = [] if indent else ["hermes_nb:\n"]
        block = yaml.safe_dump({"mcp_servers": servers}, sort_keys=False, allow_unicode=True)
        indented = [f"{' ' * (indent or 2)}{line}" for line in block.splitlines(keepends=True)]
        written = "".join([*lines[:first], *head, *indented, *lines[last:]])
        own = {**(document.get("hermes_nb") or {}), "mcp_servers": servers}
        try:
            same = yaml.safe_load(written) == {**document, "hermes_nb": own}
        except yaml.YAMLError:
            same = False
        if not same:
            raise ConfigError(f"{file} uses a YAML style that Hermes cannot edit; edit it by hand")
        write_atomic(file, written.encode(), mode=None if lines else 0o600)


def _place(root: Json, lines: Sequence[str]) -> tuple[int, int, int]:
    """Return the lines of `hermes_nb: mcp_servers:`, or where to add them, and their indent.

    The indent is 0 if there is no `hermes_nb:` yet.
    """
    pairs = {key.value: (key, value) for key, value in root.value} if root is not None else {}
    if "hermes_nb" not in pairs or not isinstance(pairs["hermes_nb"][1].value, list):
        return len(lines), len(lines), 0
    key, group = pairs["hermes_nb"]
    inner = {key.value: (key, value) for key, value in group.value}
    indent: int = group.start_mark.column
    if "mcp_servers" not in inner:
        return key.start_mark.line + 1, key.start_mark.line + 1, indent
    first = inner["mcp_servers"][0].start_mark.line
    last = inner["mcp_servers"][1].end_mark.line
    while last > first + 1 and lines[last - 1].strip()[:1] in ("", "#"):
        last -= 1  # comments after the block are not part of it
    return first, max(last, first + 1), indent


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
    """Set or remove a variable in `.env`; other lines are kept, and the file's mode becomes 0600.

    Raises OSError, and `ConfigError` for a value that cannot be represented in the file.
    """
    forms = [form for form in (value, f'"{value}"', f"'{value}'") if form]
    written = next((form for form in forms if _dotenv_value(form) == value), "")
    if value is not None and not written:
        raise ConfigError(
            f"the value of {name} cannot be written to .env; set {name} in the environment"
        )
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
    """Parse a value as Hermes Agent does: without quotes or a trailing comment."""
    if quoted := _QUOTED.fullmatch(text):
        return quoted[2]
    return _COMMENT.split(text, maxsplit=1)[0].rstrip()
