"""Tries an address and a key without paying: asks a server for the list of its models.

The request goes the way that a turn's goes (the SDK's client: its proxies, its certificates, its
key), so that what is found here holds for turns too. Redirects are not followed, so the key stays
with the host that it is for.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from hermes_nb.models.addresses import is_loopback
from hermes_nb.models.chat.classify import classify, clean_line
from hermes_nb.models.chat.endpoint import DUMMY_KEY

SECONDS = 5.0
"""How long connecting may take, and how long the server may be silent then."""

WHOLE = 3
"""Times that as long the whole answer may take."""
MOST = 8_000_000
"""Bytes of an answer that are read; a long list of models has half a million."""
STREAMED = {"X-Stainless-Raw-Response": "stream"}
"""What the SDK's own streaming access sets: hand over the bytes unparsed."""

Kind = Literal["listed", "no list", "no leave", "refused", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What came of asking. `models` are names and aliases; `problem` says what is wrong.

    `no list` is a server that answers and lists no models, `no leave` one that takes the key and
    does not let it list them, `refused` one that does not take the key (or wants one).
    """

    kind: Kind
    models: tuple[str, ...] = ()
    problem: str = ""


def reach(base_url: str, *, api_key: str = "", timeout: float = SECONDS) -> Reached:
    """Ask the server at an address for its models; never raises what the network does.

    Imports the SDK. `timeout` is in seconds, for connecting and for each silence.
    """
    import openai

    try:
        with _client(base_url, api_key, timeout) as client:
            answer = client.get(
                "/models",
                cast_to=object,
                stream=True,
                stream_cls=openai.Stream[object],
                options={"headers": STREAMED, "follow_redirects": False},
            )
            text = _read(answer.iter_bytes(), time.monotonic() + WHOLE * timeout)
    except openai.APIStatusError as error:
        return _answered(error.status_code, classify(error, secret=api_key).args[0])
    except Exception as error:  # noqa: BLE001 - only the transport runs here: all is a failure
        return Reached(kind="failed", problem=_unreached(error, base_url, timeout, api_key))
    return _listed(text)


def proxy_for(base_url: str) -> str:
    """Return the proxy that requests to an address go through, without its password, or ""."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return ""
    proxies = urllib.request.getproxies()
    proxy = urlsplit(proxies.get(parts.scheme) or proxies.get("all") or "")
    return proxy.netloc.rpartition("@")[2]


def _read(pieces: Iterator[bytes], end: float) -> str:
    """Return an answer; raise TimeoutError where it still comes at `end` (monotonic)."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MOST or time.monotonic() > end:
            message = "the answer has no end"
            raise TimeoutError(message)
    return body.decode("utf-8", "replace")


def _client(base_url: str, api_key: str, timeout: float) -> Any:  # noqa: ANN401 - the SDK's
    import openai

    address = urlsplit(base_url)
    return openai.OpenAI(
        api_key=api_key or DUMMY_KEY,
        base_url=base_url,
        max_retries=0,
        timeout=timeout,
        http_client=openai.DefaultHttpxClient(
            trust_env=not is_loopback(address.hostname or ""),
            follow_redirects=False,
        ),
    )


def _answered(status: int, told: str) -> Reached:
    """Return what a server means that answers with an error."""
    if status == 401:  # noqa: PLR2004 - HTTP's
        return Reached(kind="refused", problem=told)
    if status == 403:  # noqa: PLR2004
        return Reached(kind="no leave", problem=told)
    if status in (404, 405, 501):
        return Reached(kind="no list", problem=told)
    return Reached(kind="failed", problem=told)


def _listed(text: str) -> Reached:
    """Return the models of a listing; whatever else was answered is no model server's."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    data = found.get("data") if isinstance(found, Mapping) else None
    if not isinstance(data, list):
        web = text.lstrip().startswith("<")
        told = "a web page" if web else "something that is no list of models"
        problem = f"it answers with {told}, so this is not where models are served"
        return Reached(kind="failed", problem=problem)
    return Reached(kind="listed", models=tuple(dict.fromkeys(_names(data))))


def _names(data: list[object]) -> Iterator[str]:
    for entry in data:
        if isinstance(entry, Mapping):
            aliases = entry.get("aliases")
            yield str(entry.get("id", ""))
            yield from map(str, aliases if isinstance(aliases, list) else ())


def _unreached(error: BaseException, base_url: str, timeout: float, secret: str) -> str:
    """Return why there was no answer, by the first cause that says."""
    host = urlsplit(base_url).netloc.rpartition("@")[2]
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return f"the certificate of {host} is not trusted here ({cause.verify_message})"
            case ssl.SSLError():
                return f"{host} does not speak TLS as it should; is it http:// and not https://?"
            case socket.gaierror():
                return f"the name {host} is not known: a slip in the address, or no network"
            case ConnectionRefusedError():
                return f"nothing answers at {host}: no server is running there"
            case TimeoutError():
                return f"{host} did not answer within {timeout:g} s: no network, or a firewall"
            case _:
                pass
    if "Timeout" in type(error).__name__:
        return f"{host} did not answer within {timeout:g} s: no network, or a firewall"
    said = [str(cause) for cause in _causes(error) if str(cause)]
    told = f"there is no connection to {host}: {said[-1] if said else type(error).__name__}"
    return clean_line(told, secret)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what led to it, the first cause last."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__
