"""What went wrong with a model request, in the agent's own terms.

Works on the shape of an exception (`status_code`, `body`, class names), so that no provider's SDK
has to be loaded. Every text it makes is one line, at most 300 characters, and free of keys.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.text import one_line
from hermes_nb.models.chat.overflow import is_overflow, window_in
from hermes_nb.models.chat.retry_after import asked_delay
from hermes_nb.safety.redact import STUB, redact
from hermes_nb.safety.visible import visible

_LIMIT = 300
_SHORTEST_KEY = 6
_LONGEST_CHAIN = 10
_STATUS_CODES = frozenset(map(str, range(100, 600)))
_REDIRECTS = range(300, 400)
_MODEL_NAMED = (None, 400, 404, 422)
"""With which statuses providers answer a name that is not theirs."""
_READ = 8_000
"""Characters of a provider's text that are looked at: an error page can have megabytes."""

_BY_STATUS = {
    400: FailureKind.BAD_REQUEST,
    401: FailureKind.AUTH,
    402: FailureKind.QUOTA,
    403: FailureKind.AUTH,
    404: FailureKind.NOT_FOUND,
    408: FailureKind.TIMEOUT,
    409: FailureKind.OVERLOADED,
    413: FailureKind.CONTEXT_OVERFLOW,
    425: FailureKind.OVERLOADED,
    429: FailureKind.RATE_LIMIT,
}
_BY_WORD: tuple[tuple[re.Pattern[str], FailureKind], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"rate.?limit|too.?many.?requests|resource.?exhausted|throttl", FailureKind.RATE_LIMIT),
        (r"authentication|invalid.?api.?key|unauthorized|permission", FailureKind.AUTH),
        (r"billing|insufficient|payment", FailureKind.QUOTA),
        (r"timeout|deadline", FailureKind.TIMEOUT),
        (r"not.?found", FailureKind.NOT_FOUND),
        (r"invalid.?request|bad.?request|unsupported", FailureKind.BAD_REQUEST),
    )
)
_QUOTA = re.compile(
    r"insufficient[_ ](?:quota|balance|credit|fund)|credit balance is too low|out of credits"
    r"|exceeded your current quota|billing[_ ](?:hard[_ ]limit|not[_ ]active)|payment required"
    r"|more credits|no credits|account.{0,20}(?:suspended|deactivated)",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"(?:invalid|incorrect|missing|expired|wrong|no)[_ ]api[_ ]?key|api[_ ]key (?:not valid|expired"
    r"|not found|is invalid)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"model[_ ]not[_ ](?:found|exist)|model [^\n]{0,120}(?:does not exist|not found)"
    r"|not a valid model",
    re.IGNORECASE,
)
_SAID = {
    FailureKind.AUTH: "the provider refused the API key",
    FailureKind.QUOTA: "the account has no quota left",
    FailureKind.RATE_LIMIT: "the provider limits the rate of requests",
    FailureKind.OVERLOADED: "the provider cannot answer just now",
    FailureKind.CONTEXT_OVERFLOW: "the conversation does not fit the model's context window",
    FailureKind.BAD_REQUEST: "the provider refused the request",
    FailureKind.NOT_FOUND: "the provider does not know this model, or the address is not its own",
    FailureKind.NETWORK: "no connection to the provider",
    FailureKind.TIMEOUT: "the provider did not answer in time",
    FailureKind.MALFORMED: "the answer could not be read",
}


def classify(error: BaseException, *, secret: str = "") -> ModelError:
    """Return the failure that `error` is; `secret` is the key in use, whatever its shape."""
    if isinstance(error, ModelError):
        return error
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    if isinstance(status, int):
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        if status in _REDIRECTS:
            return _redirected(status, headers, secret)
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
    """Return the failure that a provider's error object describes, in a response or a stream."""
    detail = _Detail(body)
    text = detail.text
    status = status if status is not None else detail.status
    retry_after = asked_delay(headers or {}, f"{text} {detail.all}")
    kind = _kind(status, detail, waits=retry_after is not None)
    window = None
    if kind is FailureKind.CONTEXT_OVERFLOW:
        window = detail.window or window_in(text)
    code = f" ({status})" if status else ""
    message = f"{_SAID[kind]}{code}: {text}" if text else f"{_SAID[kind]}{code}"
    return ModelError(
        clean_line(message, secret), kind=kind, retry_after=retry_after, window=window
    )


def malformed(text: str, *, secret: str = "") -> ModelError:
    """Return the failure of an answer that arrived but could not be read."""
    return ModelError(clean_line(text, secret), kind=FailureKind.MALFORMED)


def clean_line(text: str, secret: str = "", limit: int = _LIMIT) -> str:
    """Return `text` as one bounded line without keys, and without `secret` in particular.

    What could steer a terminal, or turn the line around, is spelt out.
    """
    text = text[:_READ]
    if len(secret) >= _SHORTEST_KEY:
        for written in (secret, repr(secret)[1:-1], secret.encode("unicode_escape").decode()):
            text = text.replace(written, STUB)
    return one_line(visible(one_line(redact(text), limit)), limit)


class _Detail:
    """What a provider's error object says, whichever of the usual shapes it has."""

    def __init__(self, body: object) -> None:
        if isinstance(body, list) and body:  # Google wraps its error in a list
            body = body[0]
        self.status: int | None = None
        self.words = ""
        self.window: int | None = None
        self.all = str(body)[:_READ] if body else ""
        inner: Any = body
        if isinstance(body, Mapping):
            inner = body.get("error") or body.get("detail") or body
        if isinstance(inner, Mapping):
            self._take(inner)
            inner = _message(inner)
        self.text = _page_title(str(inner).strip()[:_READ]) if inner else ""

    def _take(self, error: Mapping[str, Any]) -> None:
        code = str(error.get("code"))
        if code in _STATUS_CODES:
            self.status = int(code)
        self.words = " ".join(str(error.get(key) or "") for key in ("code", "type", "status"))
        window = error.get("n_ctx")  # llama.cpp names it beside the message
        self.window = window if isinstance(window, int) and window > 0 else None


def _message(error: Mapping[str, Any]) -> str:
    text = next((str(error[k]) for k in ("message", "msg", "error") if error.get(k)), "")
    metadata = error.get("metadata")  # OpenRouter: what the provider behind it said
    if isinstance(metadata, Mapping) and metadata.get("raw"):
        text = f"{text}: {metadata['raw']}"
    return text or str(dict(error))


def _page_title(text: str) -> str:
    """Return the title of a web page, and any other text as it is."""
    if not re.match(r"(?i)\s*<(?:!doctype|html|head|\?xml)", text):
        return text
    title = re.search(r"(?is)<title[^>]{0,200}>([^<]{0,200})", text)
    return f"a web page, {title[1].strip()!r}" if title else "a web page"


def _kind(status: int | None, detail: _Detail, *, waits: bool) -> FailureKind:
    text = f"{detail.words} {detail.text}"
    if is_overflow(text):
        return FailureKind.CONTEXT_OVERFLOW
    # Google calls its requests-per-minute limit a quota, and says when to come back.
    if _QUOTA.search(text) and (status != HTTPStatus.TOO_MANY_REQUESTS or not waits):
        return FailureKind.QUOTA
    if _BAD_KEY.search(text):
        return FailureKind.AUTH
    if status in _MODEL_NAMED and _NO_MODEL.search(text):
        return FailureKind.NOT_FOUND
    if status is not None and status != HTTPStatus.OK:
        refused = status < HTTPStatus.INTERNAL_SERVER_ERROR
        other = FailureKind.BAD_REQUEST if refused else FailureKind.OVERLOADED
        return _BY_STATUS.get(status, other)
    for pattern, kind in _BY_WORD:
        if pattern.search(detail.words):
            return kind
    return FailureKind.OVERLOADED


def _redirected(status: int, headers: Mapping[str, str], secret: str) -> ModelError:
    """Return the refusal to follow a redirect: it would carry the key to another address."""
    place = headers.get("location", "")
    to = f" to {place}" if place else ""
    text = f"the server redirects{to} ({status}); redirects are not followed, set base_url to it"
    return ModelError(clean_line(text, secret), kind=FailureKind.BAD_REQUEST)


def _without_reply(error: BaseException, secret: str) -> ModelError:
    """Return the failure of a request that got no reply, or only a part of one."""
    chain = _causes(error)
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
    # What a cancelled wait says is about scopes and tasks, nothing of the server's.
    told = (str(link) for link in reversed(chain) if not isinstance(link, asyncio.CancelledError))
    reason = next(filter(None, told), "")
    if not reason and kind is not FailureKind.TIMEOUT:
        reason = type(error).__name__
    message = f"{_SAID[kind]}: {reason}" if reason else _SAID[kind]
    return ModelError(clean_line(message, secret), kind=kind)


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error and what it came from, outermost first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain and len(chain) < _LONGEST_CHAIN:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain
