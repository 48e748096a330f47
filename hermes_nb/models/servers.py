"""Find model servers on this machine and their owners, and list any server's models.

Only loopback addresses are probed automatically; other servers must be configured. A server found
this way is not used without the user's approval, because on a shared machine anyone can listen on a
known port. Approved servers are stored in the Hermes directory with their kind, address and socket
owner. Redirects are not followed, so a key is sent only to its own host.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.models.chat.errors import causes, clean_line, from_body
from hermes_nb.models.profiles import ANTHROPIC_VERSION, WireName, is_loopback, profile_for

LOCAL_SERVERS = {
    "Ollama": "http://127.0.0.1:11434/v1",
    "LM Studio": "http://127.0.0.1:1234/v1",
    "llama.cpp": "http://127.0.0.1:8080/v1",
    "vLLM": "http://127.0.0.1:8000/v1",
}
"""Each server's default address, from its documentation."""
PROBE_SECONDS = 0.5
SECONDS = 5.0
"""Default timeout in seconds for connecting and for each pause in the response."""
WHOLE = 3
"""Limit for the whole response, as a multiple of the timeout."""
MOST = 8_000_000
"""Maximum bytes of a response to read; a long model list has half a million."""
WINDOWS = ("max_model_len", "context_window", "context_length", "max_context_length")
"""Field names for the context window in model lists: vLLM and SGLang; Groq; OpenRouter and
Together; Mistral. llama.cpp has `n_ctx` in `meta`, next to the longer window used in training."""
_NO_SERVER = (
    *(OSError, http.client.HTTPException, ValueError, RecursionError),
    *(TypeError, KeyError, AttributeError),
)
"""Errors that occur if a server does not speak HTTP or does not send the expected JSON."""
Kind = Literal["listed", "no list", "no leave", "refused", "failed"]

FILE = "model-servers.json"
"""File in the Hermes directory that lists the servers accepted by the user."""
SOCKETS = Path("/proc/net")
"""Files in which Linux lists sockets and their owners."""


@dataclass(frozen=True, slots=True, order=True)
class ServerIdentity:
    """The server that the user accepted."""

    name: str
    """Kind of server, such as `Ollama`."""
    base_url: str
    """URL of its API."""
    uid: int | None
    """User id of the socket's owner, or None if unknown."""

    @property
    def owner(self) -> str:
        """Description of the owner."""
        if self.uid is None:
            return "owner unknown"
        if hasattr(os, "geteuid") and self.uid == os.geteuid():
            return "yours"
        try:
            import pwd

            return f"another user's: {pwd.getpwuid(self.uid).pw_name}"
        except (ImportError, KeyError):
            return f"another user's: user {self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer:
    """A server that answered."""

    identity: ServerIdentity
    """Its kind, address and owner."""
    models: tuple[str, ...]
    """Names of its models."""


def local_servers(addresses: Iterable[tuple[str, str]] | None = None) -> list[FoundServer]:
    """Return the servers that answer, in table order; they are probed in parallel.

    The only request is for the list of models.
    """
    named = list(LOCAL_SERVERS.items() if addresses is None else addresses)
    if not named:
        return []
    with ThreadPoolExecutor(len(named)) as pool:
        listed = list(pool.map(lambda pair: models_at(pair[1]), named))
    return [
        FoundServer(identity=ServerIdentity(name, url, owner_of(url)), models=models)
        for (name, url), models in zip(named, listed, strict=True)
        if models
    ]


def owner_of(base_url: str) -> int | None:
    """Return the user id of the process listening on a loopback address, or None if unknown.

    Sockets bound to all interfaces also count. If the sockets have different owners, the owner is
    unknown.
    """
    parts = urlsplit(base_url)
    try:
        host = ipaddress.IPv4Address(parts.hostname or "").packed
    except ValueError:
        return None
    mapped = bytes(10) + b"\xff\xff" + host
    wanted = set()
    for place in (host, bytes(4), mapped, bytes(16)):
        # In the kernel's notation: 4-byte words in host byte order.
        words = struct.unpack(f"={len(place) // 4}I", place)
        wanted.add("".join(f"{word:08X}" for word in words) + f":{parts.port or 80:04X}")
    uids = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (SOCKETS / table).read_text(encoding="ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for fields in map(str.split, lines):
            match fields:
                case [_, local, _, "0A", _, _, _, uid, *_] if local in wanted:  # listening
                    uids.add(int(uid))
                case _:
                    pass
    return uids.pop() if len(uids) == 1 else None


def accepted_in(home: Path) -> frozenset[ServerIdentity]:
    """Return the servers that the user has accepted; empty if the file is missing or damaged."""
    try:
        listed = json.loads((home / FILE).read_bytes())["accepted"]
        return frozenset(
            ServerIdentity(each["name"], each["base_url"], each["uid"]) for each in listed
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return frozenset()


def remember(
    home: Path, accepted: Collection[ServerIdentity], forgotten: Collection[ServerIdentity]
) -> None:
    """Save accepted servers and remove forgotten ones; raise OSError or TimeoutError."""
    make_private(home)
    with locked(home / FILE):
        known = sorted((accepted_in(home) | {*accepted}) - {*forgotten}, key=str)
        rows = [{"name": k.name, "base_url": k.base_url, "uid": k.uid} for k in known]
        data = json.dumps({"version": 1, "accepted": rows}, indent=1).encode() + b"\n"
        write_atomic(home / FILE, data, mode=0o600)


def check_owner(accepted: ServerIdentity) -> None:
    """Raise `ModelError` unless the listener's owner is the one that the user accepted."""
    if owner_of(accepted.base_url) != accepted.uid:
        message = (
            f"{accepted.name} at {accepted.base_url} has stopped or is now run by another user: "
            "nothing was sent. Start it again, or send the prompt again to decide about the "
            "server found there"
        )
        raise ModelError(message, kind=FailureKind.NOT_FOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model in a server's list."""

    name: str
    """The model's name."""
    aliases: tuple[str, ...] = ()
    """Other names for it."""
    window: int | None = None
    """Context window in tokens, or None if the server does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerResponse:
    """The result of a request for a server's models."""

    kind: Kind
    """`listed`, or: `no list`, the server answers but lists no models; `no leave`, it accepts the
    key but denies the list; `refused`, it rejects the key or requires one; `failed`."""
    listed: tuple[ListedModel, ...] = ()
    """The models; empty unless `kind` is `listed`."""
    problem: str = ""
    """The reason the models could not be listed; "" if there was no problem."""

    @property
    def chatting(self) -> tuple[ListedModel, ...]:
        """The models, except embedding models, which cannot chat."""
        return tuple(each for each in self.listed if "embed" not in each.name.lower())

    @property
    def models(self) -> tuple[str, ...]:
        """The models' names and aliases."""
        return tuple(dict.fromkeys(name for x in self.listed for name in (x.name, *x.aliases)))


def models_at(
    base_url: str, *, api_key: str = "", timeout: float = PROBE_SECONDS
) -> tuple[str, ...]:
    """Return the names of the chat models that a server lists, or ().

    `timeout` is as in `reach`.
    """
    return tuple(x.name for x in reach(base_url, api_key=api_key, timeout=timeout).chatting)


def window_at(
    base_url: str, model: str, *, api_key: str = "", timeout: float = PROBE_SECONDS
) -> int | None:
    """Return the context window that a server reports for a model, or None if it reports none."""
    listed = reach(base_url, api_key=api_key, timeout=timeout).chatting
    return next((x.window for x in listed if model in (x.name, *x.aliases)), None)


def reach(
    base_url: str, *, api_key: str = "", timeout: float = SECONDS, wire: WireName | None = None
) -> ServerResponse:
    """Ask a server for its models, which is free and checks the address and the key.

    Network errors are returned, not raised. Requests to this machine bypass proxies.

    Args:
        base_url: URL of the API.
        api_key: Key to send; "" for none.
        timeout: Seconds for connecting and for each pause; the whole response may take three times
            as long.
        wire: The server's protocol; None for its host's usual one.
    """
    end = time.monotonic() + WHOLE * timeout
    try:
        messages = (wire or profile_for("", base_url).wire) == "messages"
        url = f"{base_url.rstrip('/')}/models{'?limit=1000' if messages else ''}"
        request = urllib.request.Request(url)  # noqa: S310 - see below
        if request.type not in ("http", "https"):
            return ServerResponse(
                kind="failed", problem=f"{request.type} is not supported; use http or https"
            )
        request.add_header("User-Agent", "hermes_nb")
        if messages:
            request.add_header("anthropic-version", ANTHROPIC_VERSION)
        if api_key and messages:
            request.add_header("x-api-key", api_key)
        elif api_key:
            request.add_header("Authorization", f"Bearer {api_key}")
        here = is_loopback(urlsplit(f"//{request.host}").hostname or "")
        direct = [urllib.request.ProxyHandler({})] if here else []
        opener = urllib.request.build_opener(_Staying, *direct)
        with opener.open(request, timeout=timeout) as response:
            return _listing(_bounded(response, end))
    except urllib.error.HTTPError as error:
        return _answered(error, api_key, end)
    except _NO_SERVER as error:
        return ServerResponse(
            kind="failed", problem=_unreachable_reason(error, base_url, timeout, api_key)
        )


def proxy_for(base_url: str) -> str:
    """Return the proxy for requests to an address, without its password, or "".

    Reads the environment variables like httpx. urllib differs slightly, and could miss a proxy that
    is in use.
    """
    parts = urlsplit(base_url)
    host, proxies = parts.hostname or "", urllib.request.getproxies()
    for name in map(str.strip, proxies.get("no", "").lower().split(",")):
        below = name if name.startswith(".") else f".{name}"
        if name == "*" or (name and (host == name or host.endswith(below))):
            return ""
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not proxy or (is_loopback(host) and parts.scheme == "http"):
        return ""
    named = urlsplit(proxy if "://" in proxy else f"http://{proxy}").netloc or proxy
    return named.rpartition("@")[2]


class _Staying(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: a redirect is the final response, and an error."""

    def redirect_request(self, *_: object) -> None:
        return


class _Body(Protocol):
    """A response of http.client or an HTTP error."""

    def read1(self, size: int, /) -> bytes: ...


def _bounded(response: _Body, end: float) -> bytes:
    """Return the body; raise TimeoutError if it is not complete by `end` (monotonic time)."""
    body = bytearray()
    while piece := response.read1(65_536):
        body += piece
        if len(body) > MOST or time.monotonic() > end:
            raise TimeoutError("the response does not end")
    return bytes(body)


def _listing(answer: bytes) -> ServerResponse:
    """Return the models in a list; any other response does not come from a model server."""
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        document = None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        web = answer.lstrip().startswith(b"<")
        text = "a web page" if web else "something that is not a list of models"
        problem = f"it answers with {text}, so this is not the address of a model API"
        return ServerResponse(kind="failed", problem=problem)
    entries = (entry for entry in data if isinstance(entry, dict) and "id" in entry)
    return ServerResponse(kind="listed", listed=tuple(map(_entry, entries)))


def _entry(entry: Mapping[str, Json]) -> ListedModel:
    aliases, meta = entry.get("aliases"), entry.get("meta")
    said = [entry.get(key) for key in WINDOWS]
    said.append(meta.get("n_ctx") if isinstance(meta, dict) else None)
    windows = [n for n in said if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return ListedModel(
        name=str(entry["id"]),
        aliases=tuple(map(str, aliases)) if isinstance(aliases, list) else (),
        window=min(windows, default=None),
    )


def _answered(error: urllib.error.HTTPError, secret: str, end: float) -> ServerResponse:
    """Return the result for an error response."""
    body: object = None
    with suppress(*_NO_SERVER), error:
        body = text = _bounded(error, end).decode("utf-8", "replace")
        body = json.loads(text)
    headers = {name.lower(): value for name, value in error.headers.items()}
    problem = from_body(body, status=error.code, headers=headers, secret=secret).args[0]
    kinds: dict[int, Kind] = {401: "refused", 403: "no leave"}
    missing: Kind = "no list" if error.code in (404, 405, 501) else "failed"
    return ServerResponse(kind=kinds.get(error.code, missing), problem=problem)


def _unreachable_reason(error: BaseException, base_url: str, timeout: float, secret: str) -> str:
    """Return the reason there was no response, as explained by the first informative cause."""
    host = urlsplit(base_url).netloc.rpartition("@")[2]
    reason = getattr(error, "reason", None)
    chain = causes(reason if isinstance(reason, BaseException) else error)
    for cause in chain:
        match cause:
            case ssl.SSLCertVerificationError():
                return f"the certificate of {host} is not trusted here ({cause.verify_message})"
            case ssl.SSLError():
                return (
                    f"{host} failed the TLS handshake; is the address http:// instead of https://?"
                )
            case socket.gaierror():
                return f"the host {host} was not found: check the address and the network"
            case ConnectionRefusedError():
                return f"nothing answers at {host}: no server is running there"
            case TimeoutError():
                return f"{host} did not answer within {timeout:g} s: no network, or a firewall"
            case _:
                pass
    said = [str(cause) for cause in chain if str(cause)]
    text = f"the connection to {host} failed: {said[-1] if said else type(error).__name__}"
    return clean_line(text, secret)
