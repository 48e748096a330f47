"""What may pass: the one decision point for every tool call, and redaction of secrets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hermes_nb.core.messages import Json


@cache
def table(name: str) -> dict[str, Json]:
    """Return what a TOML file in here says, read once."""
    import tomllib  # not with the extension

    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
