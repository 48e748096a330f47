"""What the embedded model's weights are, and where to look for them, as `weights.toml` says."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_nb.core.errors import ConfigError
from hermes_nb.models.weights.http import Url
from hermes_nb.models.weights.partial import Source
from hermes_nb.models.weights.wheels import Part, Wheels


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A file by its digest: `size` in bytes, `sha256` in lower-case hexadecimal."""

    name: str
    file: str
    size: int
    sha256: str
    sources: tuple[Source, ...] = ()


def shipped() -> Weights:
    """Return the weights that `weights.toml` describes."""
    text = Path(__file__).with_name("weights.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return Weights(**data["weights"], sources=tuple(_source(item) for item in data["source"]))


def _source(item: Mapping[str, Any]) -> Source:
    match item:
        case {"kind": "http", "name": str(name), "url": str(url)} if url.startswith("https://"):
            return Url(name=name, url=url)
        case {"kind": "wheels", "name": str(name), "version": str(version), "parts": list(parts)}:
            pieces = tuple(Part(**part) for part in parts)
            return Wheels(name=name, version=version, parts=pieces)
        case _:
            message = f"weights.toml: no such source: {dict(item)!r}"
            raise ConfigError(message)
