"""What went wrong with a model request in our own terms, and what to do about it.

`classify` works on the shape of an exception (`status_code`, `body`, class names), so that no
provider's SDK has to be loaded. Every text it makes is one line, at most 300 characters, and free
of keys. `Retrying` tries again, `Fallback` asks the next model; both are models themselves, so the
loop never sees them. The providers' words are from their error references and the source of
llama.cpp, llama-cpp-python, vLLM, text-generation-inference and LM Studio, as of 2026-11.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import Delta, RequestRetried
from hermes_nb.core.messages import Reply
from hermes_nb.core.protocols import MOST_WAITED, ChatModel, Request, Waited, body_of
from hermes_nb.core.text import one_line
from hermes_nb.safety.redact import STUB, redact
from hermes_nb.safety.visible import visible

_OVERFLOW = re.compile(
    r"""(?ix)
      context[_ ]length[_ ]exceeded | exceed_context_size | model_context_window_exceeded
    | (?:maximum|max)[ ](?:context|prompt|model)[ ]length
    | prompt[ ]is[ ]too[ ]long | input[ ]is[ ]too[ ]long | prompt[ ]too[ ]long
    | prompt[ ]exceeds[ ]max | exceed(?:s|ed|ing)?[ ](?:the[ ])?(?:available[ ])?context
    | exceeds?[ ](?:the[ ])?(?:model.s[ ])?(?:maximum[ ])?context
    | context[ ](?:window|length|size)[ ](?:of|exceeds|is[ ]exceeded|limit)
    | context[ ]the[ ]overflows | (?:context|model[ ]token)[ ]limit
    | input[ ]token[ ]count.{0,40}exceeds | too[ ]many[ ](?:input[ ])?tokens
    | reduce[ ]the[ ]length[ ]of[ ](?:the|your)
    | inputs`?[ ](?:tokens[ ])?(?:\+|must[ ]have[ ]less)
    | request[ ]too[ ]large[ ]for[ ]model | request_too_large
    | (?:request|prompt|input)[ ].{0,40}(?:n_ctx|context[ ]size)
    """
)
_NUMBER = r"(\d[\d,_]{2,11}k?)"
_WINDOWS = tuple(
    re.compile(pattern.replace("NUMBER", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"(?:maximum|max) (?:context|prompt|model) length (?:is|of|:) ?NUMBER",
        r"(?:maximum|max) (?:context|prompt|model) length:? NUMBER",
        r"tokens? > NUMBER maximum",
        r"context limit: [\d,_ +]{1,40}> NUMBER",
        r"context (?:window|length|size)(?: of)?(?: only)?[ (:]{1,2}NUMBER",
        r"tokens allowed \(NUMBER\)",
        r"NUMBER maximum context length",
        r"model token limit: NUMBER",
        r"(?:n_ctx|context size)\W{1,5}NUMBER",
        r"(?:must be|cannot exceed) (?:<= ?)?NUMBER",
        r"while limit is NUMBER",
        r"exceeds limit \(NUMBER\)",
    )
)


_SENSIBLE = range(256, 100_000_000)


def is_overflow(text: str) -> bool:
    """Say whether an error text means that the prompt does not fit.

    A rate limit that the request alone exceeds counts too: waiting never helps, a shorter prompt
    does.
    """
    return _OVERFLOW.search(text) is not None


def window_in(text: str) -> int | None:
    """Return the context window in tokens that an error text names, or None."""
    for pattern in _WINDOWS:
        if found := pattern.search(text):
            digits = found[1].lower()
            scale = 1000 if digits.endswith("k") else 1
            window = int(re.sub(r"\D", "", digits)) * scale
            if window in _SENSIBLE:
                return window
    return None


LONGEST = 86_400.0
"""Seconds; what asks for more than a day is taken as a day."""

_IN_TEXT = re.compile(
    r"(?i)(?:try again in|retry in|retry after|retry_?delay\W{1,6})\s{0,2}"
    r"(?:(\d{1,4})m(?!s))?(\d{1,8}(?:\.\d{1,9})?)?(ms|s\b|seconds?\b)?"
)


def asked_delay(headers: Mapping[str, str], text: str = "") -> float | None:
    """Return the seconds from now, between 0 and a day, or None when nothing sensible was asked.

    Reads `retry-after-ms`, `retry-after` (seconds, or a date, which counts from the response's own
    `date`: the clock here may be wrong), then phrases such as "try again in 1m2.5s".
    """
    if milliseconds := headers.get("retry-after-ms"):
        delay = _seconds(milliseconds, scale=0.001)
        if delay is not None:
            return delay
    if value := headers.get("retry-after"):
        delay = _seconds(value)
        return delay if delay is not None else _until(value, headers.get("date", ""))
    found = _IN_TEXT.search(text)
    if found is None or not (found[1] or (found[2] and found[3])):
        return None
    seconds = float(found[2] or 0) * (0.001 if (found[3] or "").lower() == "ms" else 1)
    return min(float(found[1] or 0) * 60 + seconds, LONGEST)


def _seconds(value: str, *, scale: float = 1.0) -> float | None:
    try:
        seconds = float(value) * scale
    except ValueError:
        return None
    if math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), LONGEST)


def _until(value: str, now: str) -> float | None:
    then = _date(value)
    if then is None:
        return None
    start = _date(now) or datetime.now(UTC)
    return min(max((then - start).total_seconds(), 0.0), LONGEST)


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


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


__all__ = ["ELSEWHERE", "RETRIED", "Fallback", "Retrying", "classify"]

RETRIED = frozenset(
    {
        FailureKind.RATE_LIMIT,
        FailureKind.OVERLOADED,
        FailureKind.NETWORK,
        FailureKind.TIMEOUT,
        FailureKind.MALFORMED,
    }
)
"""What the same request to the same model may survive a moment later."""

ELSEWHERE = RETRIED | {FailureKind.AUTH, FailureKind.QUOTA, FailureKind.NOT_FOUND}
"""What another provider may do better; a bad request is bad everywhere."""

_HOUR = 3600


class Retrying:
    """A model that tries again where that can help.

    `tries` counts all requests. The wait grows from `base` seconds, doubled each time, with full
    jitter; a wait that the provider asks for is honoured. The requests of one turn wait at most
    `cap` seconds in all. A request that failed in the middle of its reply is sent anew:
    `RequestRetried` voids what it had shown. `before` is called ahead of each request, and may
    raise what keeps it from being sent.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        tries: int = 3,
        base: float = 1.0,
        before: Callable[[], None] = lambda: None,
        cap: float = MOST_WAITED,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._tries = max(1, tries)
        self._base = base
        self._before = before
        self._cap = cap
        self._sleep = sleep
        self._random = random

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model.name

    @property
    def window(self) -> int | None:
        """The model's own window."""
        return self._model.window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the model's deltas and reply, and `RequestRetried` before each wait."""
        waited = request.waited or Waited()
        for attempt in range(1, self._tries + 1):
            try:
                self._before()
                async with aclosing(self._model.stream(request)) as items:
                    async for item in items:
                        yield item
            except ModelError as error:
                left = self._cap - waited.seconds
                if error.kind not in RETRIED:
                    raise
                if attempt == self._tries or left <= 0:
                    raise self._told(error) from None
                delay = min(self._delay(error, attempt), left)
                reason = str(self._told(error))
            else:
                return
            yield RequestRetried(reason, delay, attempt, self._model.name)
            waited.seconds += delay
            await self._sleep(delay)

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

    def body(self, request: Request) -> bytes:
        """Return the JSON that the model would send."""
        return body_of(self._model, request)

    def _told(self, error: ModelError) -> ModelError:
        """Return an error that also says how long a provider wants to be left alone."""
        asked = error.retry_after or 0.0
        if asked <= self._cap:
            return error
        wait = f"{asked / 3600:.3g} h" if asked >= _HOUR else f"{asked / 60:.3g} min"
        message = f"{error}; it asks for {wait}, and a turn waits {self._cap:g} s (`max_wait`)"
        return ModelError(message, kind=error.kind, retry_after=asked, window=error.window)

    def _delay(self, error: ModelError, attempt: int) -> float:
        """Return the seconds to wait, never more than the cap."""
        # The exponent is bounded because a float overflows at 2**1024.
        jitter = self._random() * min(self._cap, self._base * 2.0 ** min(attempt - 1, 60))
        if error.retry_after is None:
            return jitter
        # A little on top, so that those who were all told the same do not come back at once.
        return min(self._cap, error.retry_after + self._random() * self._base)


class Fallback:
    """Models in order of preference: the next one answers when one failed for good.

    A model that failed rests for `rest` seconds of the monotonic clock, so that a turn of many
    requests does not pay for the same failure each time. A conversation that is too long for a
    model goes back to be compressed; where it is too long again, the next model may have room for
    it. `window` is that of the model whose turn it is.
    """

    def __init__(
        self,
        models: Sequence[ChatModel],
        *,
        rest: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not models:
            message = "a fallback needs at least one model"
            raise ValueError(message)
        self._models = tuple(models)
        self._rest = rest
        self._clock = clock
        self._resting: dict[int, float] = {}
        self._too_long: set[int] = set()

    @property
    def name(self) -> str:
        """The name of the model whose turn it is."""
        return self._order()[0].name

    @property
    def window(self) -> int | None:
        """The window of the model whose turn it is."""
        return self._order()[0].window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the first model's deltas and reply that come to an end."""
        models = self._order()
        for attempt, model in enumerate(models, start=1):
            try:
                async with aclosing(model.stream(request)) as items:
                    async for item in items:
                        yield item
            except ModelError as error:
                if not self._goes_on(model, error) or attempt == len(models):
                    raise
                reason = str(error)
            else:
                self._too_long.discard(id(model))
                return
            yield RequestRetried(reason, 0.0, attempt, models[attempt].name)

    async def aclose(self) -> None:
        """Close every model."""
        for model in self._models:
            await model.aclose()

    def body(self, request: Request) -> bytes:
        """Return the JSON that the model whose turn it is would send."""
        return body_of(self._order()[0], request)

    def _goes_on(self, model: ChatModel, error: ModelError) -> bool:
        """Take note of a failure; say whether another model may do better."""
        if error.kind is FailureKind.CONTEXT_OVERFLOW:
            again = id(model) in self._too_long
            self._too_long.add(id(model))
            return again
        if error.kind not in ELSEWHERE:
            return False
        self._resting[id(model)] = self._clock() + self._rest
        return True

    def _order(self) -> list[ChatModel]:
        """Return the models to ask in order, the resting ones last."""
        now = self._clock()
        return sorted(self._models, key=lambda model: self._resting.get(id(model), now) > now)
