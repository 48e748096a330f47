"""Security: decisions on tool calls, sandboxing, redaction of secrets, prompt injection scans."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hermes_nb.core.messages import Json


@cache
def table(name: str) -> dict[str, Json]:
    """Return the contents of a TOML file in this folder, which is read only once."""
    import tomllib  # not needed when the extension loads

    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
