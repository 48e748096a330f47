"""Model servers on this machine, and what any server says it serves.

Only loopback addresses are tried on their own; everything else has to be configured.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hermes_nb.models.addresses import is_loopback

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A model as a server lists it; `window` is its context window in tokens where it says so."""

    name: str
    aliases: tuple[str, ...] = ()
    window: int | None = None


def models_at(
    base_url: str, *, api_key: str = "", timeout: float = PROBE_SECONDS
) -> tuple[str, ...]:
    """Return the names of the models that a server lists, as `listed_at` does."""
    return tuple(each.name for each in listed_at(base_url, api_key=api_key, timeout=timeout))


def window_at(
    base_url: str, model: str, *, api_key: str = "", timeout: float = PROBE_SECONDS
) -> int | None:
    """Return the context window that a server says it serves a model with, None if it does not."""
    for each in listed_at(base_url, api_key=api_key, timeout=timeout):
        if model in (each.name, *each.aliases):
            return each.window
    return None


def listed_at(
    base_url: str, *, api_key: str = "", timeout: float = PROBE_SECONDS
) -> tuple[Listed, ...]:
    """Return the models a server lists, none when it does not answer as such a server does.

    Embedding models are left out: they cannot chat. Redirects are not followed, so the key stays
    with the host it is for; a proxy is not asked for this machine's own servers. `timeout` is in
    seconds, for the connection and then for the whole answer.
    """
    try:
        request = urllib.request.Request(base_url.rstrip("/") + "/models")  # noqa: S310 - see below
        if request.type not in ("http", "https"):
            return ()
        if api_key:
            request.add_header("Authorization", f"Bearer {api_key}")
        with _opener(request.host).open(request, timeout=timeout) as response:
            document = json.loads(_read(response, time.monotonic() + timeout))
        listed = tuple(map(_listed, document["data"]))
    except _NO_SERVER:
        return ()
    return tuple(each for each in listed if "embed" not in each.name.lower())


WINDOWS = ("max_model_len", "context_window", "context_length", "max_context_length")
"""What servers call the window beside a model's name: vLLM and SGLang, Groq, OpenRouter and
Together, Mistral. llama.cpp has `n_ctx` in `meta`, beside the longer one of the training."""


def _listed(entry: dict[str, Any]) -> Listed:
    aliases = entry.get("aliases")
    meta = entry.get("meta")
    said = [entry.get(key) for key in WINDOWS]
    said.append(meta.get("n_ctx") if isinstance(meta, dict) else None)
    windows = [n for n in said if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return Listed(
        name=str(entry["id"]),
        aliases=tuple(map(str, aliases)) if isinstance(aliases, list) else (),
        window=min(windows, default=None),
    )


_MOST = 1_000_000
"""Bytes of an answer that are read; a longer one is no list of models."""
_NO_SERVER = (
    *(OSError, http.client.HTTPException, ValueError, RecursionError),
    *(TypeError, KeyError, AttributeError),
)
"""What comes of speaking HTTP and JSON with something that may speak neither."""


class _Staying(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as an answer, which is then an error."""

    def redirect_request(self, *_: object) -> None:
        """Go nowhere."""


def _opener(host: str) -> urllib.request.OpenerDirector:
    here = is_loopback(urlsplit(f"//{host}").hostname or "")
    return urllib.request.build_opener(
        _Staying, *([urllib.request.ProxyHandler({})] if here else [])
    )


def _read(response: http.client.HTTPResponse, end: float) -> bytes:
    """Return the answer; raise TimeoutError where it is still coming at `end` (monotonic)."""
    body = bytearray()
    while piece := response.read1(65_536):
        body += piece
        if len(body) > _MOST or time.monotonic() > end:
            message = "the answer has no end"
            raise TimeoutError(message)
    return bytes(body)
