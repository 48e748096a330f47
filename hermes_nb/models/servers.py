"""Model servers on this machine, and what any server says it serves.

Only loopback addresses are tried on their own; everything else has to be configured.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

LOCAL_SERVERS = {
    "Ollama": "http://127.0.0.1:11434/v1",
    "LM Studio": "http://127.0.0.1:1234/v1",
    "llama.cpp": "http://127.0.0.1:8080/v1",
    "vLLM": "http://127.0.0.1:8000/v1",
}
"""Each server's default address, from its own documentation."""
PROBE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that answered: its address and the models it lists."""

    name: str
    base_url: str
    models: tuple[str, ...]


def local_servers(addresses: Iterable[tuple[str, str]] | None = None) -> list[Served]:
    """Return the servers that answer, in table order; the probes run side by side."""
    named = list(LOCAL_SERVERS.items() if addresses is None else addresses)
    if not named:
        return []
    with ThreadPoolExecutor(len(named)) as pool:
        listed = list(pool.map(lambda pair: models_at(pair[1]), named))
    return [
        Served(name=name, base_url=url, models=models)
        for (name, url), models in zip(named, listed, strict=True)
        if models
    ]


def models_at(
    base_url: str, *, api_key: str = "", timeout: float = PROBE_SECONDS
) -> tuple[str, ...]:
    """Return the model names a server lists, none when it does not answer as such a server does.

    Embedding models are left out: they cannot chat.
    """
    request = urllib.request.Request(base_url.rstrip("/") + "/models")  # noqa: S310 - http(s) below
    if request.type not in ("http", "https"):
        return ()
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
            document = json.loads(response.read(1_000_000))
        names = [str(entry["id"]) for entry in document["data"]]
    except (OSError, ValueError, TypeError, KeyError, urllib.error.URLError):
        return ()
    return tuple(name for name in names if "embed" not in name.lower())
