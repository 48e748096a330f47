"""MIME bundles as JSON can carry them, whatever user code put in."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")
_DEPTH = 100


def bundle(data: Mapping[str, Any], metadata: object) -> dict[str, Any]:
    """Return `data` and `metadata` of an output: bytes as base64, what is not JSON as text."""
    clean = {str(mime): _content(str(mime), value) for mime, value in data.items()}
    return {"data": clean, "metadata": json_ready(metadata or {})}


def json_ready(value: object, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
    """Return `value` as JSON can carry it; NaN and infinities become None, strangers their text."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return well_formed(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping() if depth < _DEPTH:
            return {well_formed(str(k)): json_ready(v, depth + 1) for k, v in value.items()}
        case list() | tuple() if depth < _DEPTH:
            return [json_ready(item, depth + 1) for item in value]
        case _:
            return well_formed(str(value)[:1000])


def well_formed(text: str) -> str:
    """Return text that UTF-8 can carry: lone surrogates are replaced."""
    return _SURROGATES.sub("\ufffd", text)


def _content(mime: str, value: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, str):
        return well_formed(value)
    if mime == "application/json" or mime.endswith("+json"):
        return json_ready(value)
    return well_formed(str(value))
