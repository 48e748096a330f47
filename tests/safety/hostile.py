"""What a hostile text may try in a notebook, and what a harmless one needs (`data/markup.json`).

Every payload calls `__pwned()` if it runs, asks for something at `spy.invalid` if it loads, or
hides what it is. `{n}` becomes a number, so that one can be told from another.
"""

from __future__ import annotations

import json
from pathlib import Path

_TEXTS = json.loads(Path(__file__).with_name("data").joinpath("markup.json").read_text("utf-8"))
PAYLOADS: list[str] = _TEXTS["payloads"]
HARMLESS: list[str] = _TEXTS["harmless"]
"""Texts that stay as they are."""


def numbered(payload: str, number: int) -> str:
    """Return a payload that can be told from the others."""
    return payload.replace("{n}", str(number))
