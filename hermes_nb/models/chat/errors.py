"""Classify failed model requests as `ModelError`.

Examines an exception's attributes (`status_code`, `body`, class names), so no provider's SDK has to
be loaded. `errors.toml` has the providers' wordings. Every message is one line of at most 300
characters, without keys.
"""

from __future__ import annotations

import asyncio
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path

from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.safety.redact import STUB, redact

_TABLES: Mapping[str, Json] = tomllib.loads(
    Path(__file__).with_name("errors.toml").read_text(encoding="utf-8")
)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("NUMBER", r"(\d[\d,_]{2,11}k?)"), re.IGNORECASE)


_OVERFLOW, _QUOTA, _BAD_KEY, _NO_MODEL = (
    _pattern(_TABLES[name]) for name in ("overflow", "quota", "bad_key", "no_model")
)
ROLES = _pattern(_TABLES["roles"])
"""Errors of servers whose chat template requires that the roles of messages alternate."""
_WINDOWS = tuple(map(_pattern, _TABLES["windows"]))
_BY_STATUS = {int(status): FailureKind(kind) for status, kind in _TABLES["statuses"].items()}
_BY_WORD = [(_pattern(text), FailureKind(kind)) for kind, text in _TABLES["words"].items()]
_SAID: Mapping[FailureKind, str] = {FailureKind(k): said for k, said in _TABLES["said"].items()}
_SENSIBLE = range(256, 100_000_000)


def window_in(text: str) -> int | None:
    """Return the context window in tokens that an error text mentions, or None."""
    for found in filter(None, (pattern.search(text) for pattern in _WINDOWS)):
        scale = 1000 if found[1].lower().endswith("k") else 1
        window = int(re.sub(r"\D", "", found[1])) * scale
        if window in _SENSIBLE:
            return window
    return None


LONGEST = 86_400.0
"""Maximum delay in seconds: one day."""

_IN_TEXT = re.compile(
    r"(?i)(?:try again in|retry in|retry after|retry_?delay\W{1,6})\s{0,2}"
    r"(?:(\d{1,4})m(?!s))?(\d{1,8}(?:\.\d{1,9})?)?(ms|s\b|seconds?\b)?"
)


def asked_delay(headers: Mapping[str, str], text: str = "") -> float | None:
    """Return the requested delay in seconds, at most a day; None if there is no valid one.

    Reads `retry-after-ms`, then `retry-after` (seconds, or a date compared with the response's own
    `date`, since the local clock may be wrong), then phrases such as "try again in 1m2.5s".
    """
    delay = _seconds(headers.get("retry-after-ms"), scale=0.001)
    if delay is None:
        delay = _seconds(headers.get("retry-after"))
    then = _date(headers.get("retry-after")) if delay is None else None
    if then is not None:
        delay = (then - (_date(headers.get("date")) or datetime.now(UTC))).total_seconds()
    found = _IN_TEXT.search(text) if delay is None and not headers.get("retry-after") else None
    if found is not None and (found[1] or (found[2] and found[3])):
        scale = 0.001 if (found[3] or "").lower() == "ms" else 1
        delay = float(found[1] or 0) * 60 + float(found[2] or 0) * scale
    return None if delay is None else min(max(delay, 0.0), LONGEST)


def _seconds(value: str | None, *, scale: float = 1.0) -> float | None:
    try:
        seconds = float(value or "nan") * scale
    except ValueError:
        return None
    return None if math.isnan(seconds) else seconds


def _date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value or "")
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


_LIMIT = 300
_SHORTEST_KEY = 6
_LONGEST_CHAIN = 10
_STATUS_CODES = frozenset(map(str, range(100, 600)))
_REDIRECTS = range(300, 400)
_MODEL_NAMED = (None, 400, 404, 422)
"""HTTP statuses that providers return for an unknown model name; None for errors in a stream."""
_READ = 8_000
"""Maximum characters of a provider's text to read: an error page can be megabytes long."""


def classify(error: BaseException, *, secret: str = "") -> ModelError:
    """Return the failure for an exception; `secret` is the key in use, which is masked."""
    if isinstance(error, ModelError):
        return error
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    if isinstance(status, int):
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return from_body(body, status=status, headers=headers, secret=secret)
    if body:
        return from_body(body, secret=secret)
    return _without_reply(error, secret)


def from_body(
    body: object,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    secret: str = "",
) -> ModelError:
    """Return the failure for a provider's error object, from a response or a stream."""
    if status is not None and status in _REDIRECTS:
        return _redirected(status, headers or {}, secret)
    detail = _Detail(body)
    text = detail.text
    status = status if status is not None else detail.status
    retry_after = asked_delay(headers or {}, f"{text} {detail.all}")
    kind = _kind(status, detail, waits=retry_after is not None)
    too_long = kind is FailureKind.CONTEXT_OVERFLOW
    window = detail.window or window_in(text) if too_long else None
    message = _SAID[kind] + (f" ({status})" if status else "") + (f": {text}" if text else "")
    return ModelError(
        clean_line(message, secret), kind=kind, retry_after=retry_after, window=window
    )


def malformed(text: str, *, secret: str = "") -> ModelError:
    """Return the failure for a response that could not be read."""
    return ModelError(clean_line(text, secret), kind=FailureKind.MALFORMED)


def clean_line(text: str, secret: str = "", limit: int = _LIMIT) -> str:
    """Return `text` as one line of at most `limit` characters, with keys and `secret` masked.

    Terminal control characters and bidirectional controls are escaped.
    """
    text = text[:_READ]
    if len(secret) >= _SHORTEST_KEY:
        for written in (secret, repr(secret)[1:-1], secret.encode("unicode_escape").decode()):
            text = text.replace(written, STUB)
    return one_line(visible(one_line(redact(text), limit)), limit)


class _Detail:
    """The contents of a provider's error object, in any of the usual shapes."""

    def __init__(self, body: object) -> None:
        if isinstance(body, list) and body:  # Google wraps its error in a list
            body = body[0]
        self.status: int | None = None
        self.words = ""
        self.window: int | None = None
        self.all = str(body)[:_READ] if body else ""
        inner = body
        if isinstance(body, Mapping):
            inner = body.get("error") or body.get("detail") or body
        if isinstance(inner, Mapping):
            code = str(inner.get("code"))
            self.status = int(code) if code in _STATUS_CODES else None
            self.words = " ".join(str(inner.get(key) or "") for key in ("code", "type", "status"))
            window = inner.get("n_ctx")  # llama.cpp puts it next to the message
            self.window = window if isinstance(window, int) and window > 0 else None
            inner = _message(inner)
        self.text = _page_title(str(inner).strip()[:_READ]) if inner else ""


def _message(error: Mapping[str, object]) -> str:
    text = next((str(error[k]) for k in ("message", "msg", "error") if error.get(k)), "")
    metadata = error.get("metadata")  # OpenRouter: the upstream provider's message
    if isinstance(metadata, Mapping) and metadata.get("raw"):
        text = f"{text}: {metadata['raw']}"
    return text or str(dict(error))


def _page_title(text: str) -> str:
    """Return the title of a web page; return any other text unchanged."""
    if not re.match(r"(?i)\s*<(?:!doctype|html|head|\?xml)", text):
        return text
    title = re.search(r"(?is)<title[^>]{0,200}>([^<]{0,200})", text)
    return f"a web page, {title[1].strip()!r}" if title else "a web page"


def _kind(status: int | None, detail: _Detail, *, waits: bool) -> FailureKind:
    text = f"{detail.words} {detail.text}"
    # Includes a rate limit that this request alone exceeds: waiting never helps, a shorter prompt
    # does.
    if _OVERFLOW.search(text):
        return FailureKind.CONTEXT_OVERFLOW
    # Google calls its requests-per-minute limit a quota, and sends a delay with it.
    if _QUOTA.search(text) and (status != HTTPStatus.TOO_MANY_REQUESTS or not waits):
        return FailureKind.QUOTA
    if _BAD_KEY.search(text):
        return FailureKind.AUTH
    if ROLES.search(text):
        return FailureKind.BAD_REQUEST  # llama.cpp reports 500
    if status in _MODEL_NAMED and _NO_MODEL.search(text):
        return FailureKind.NOT_FOUND
    if status is not None and status != HTTPStatus.OK:
        refused = status < HTTPStatus.INTERNAL_SERVER_ERROR
        other = FailureKind.BAD_REQUEST if refused else FailureKind.OVERLOADED
        return _BY_STATUS.get(status, other)
    kinds = (kind for pattern, kind in _BY_WORD if pattern.search(detail.words))
    return next(kinds, FailureKind.OVERLOADED)


def _redirected(status: int, headers: Mapping[str, str], secret: str) -> ModelError:
    """Return the failure for a redirect: following it would send the key to another address."""
    place = headers.get("location", "")
    to = f" to {place}" if place else ""
    text = f"the server redirects{to} ({status}); redirects are not followed, set base_url to it"
    return ModelError(clean_line(text, secret), kind=FailureKind.BAD_REQUEST)


def _without_reply(error: BaseException, secret: str) -> ModelError:
    """Return the failure for a request with no response, or with only part of one."""
    chain = causes(error)
    names = {cls.__name__ for link in chain for cls in type(link).__mro__}
    if any("Timeout" in name for name in names):
        kind = FailureKind.TIMEOUT
    elif names & {"JSONDecodeError", "UnicodeDecodeError", "DecodingError"}:
        kind = FailureKind.MALFORMED
    elif names & {"UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "UnicodeEncodeError"}:
        kind = FailureKind.BAD_REQUEST
    elif names & {"APIConnectionError", "TransportError", "OSError", "EndOfStream"}:
        kind = FailureKind.NETWORK
    else:
        kind = FailureKind.MALFORMED
    # Skip cancellations: their texts are about scopes and tasks, not the server.
    told = (str(link) for link in reversed(chain) if not isinstance(link, asyncio.CancelledError))
    reason = next(filter(None, told), "")
    if not reason and kind is not FailureKind.TIMEOUT:
        reason = type(error).__name__
    message = f"{_SAID[kind]}: {reason}" if reason else _SAID[kind]
    return ModelError(clean_line(message, secret), kind=kind)


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, outermost first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain and len(chain) < _LONGEST_CHAIN:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain
