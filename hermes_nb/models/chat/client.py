"""A model at an endpoint: chat.completions, OpenAI's Responses, or Anthropic's Messages.

A request is assembled from cached bytes: each message and the list of tools is serialised only
once. Models at the same address share an SDK client, one per event loop; the SDK is imported on the
first request, in a thread. The SDK's typed method would walk all parameters of the whole
conversation (39 to 319 ms of CPU per request, growing with the turn). So the body goes through the
client's generic `post`, which keeps authentication, headers and error classes.

Redirects are not followed, so a key never reaches another host. A reply is parsed leniently (see
`stream`) and cut off at a limit. If an endpoint rejects a feature (usage in the stream, tools),
that feature is not used again. The profile determines the protocol (see `wire`); the SDK only
transports bytes.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakSet

from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import Delta, ReasoningDelta
from hermes_nb.core.json_values import dumps
from hermes_nb.core.messages import Memo, Message, Reply
from hermes_nb.core.protocols import Request
from hermes_nb.core.threads import untimed
from hermes_nb.models.caching import TTL
from hermes_nb.models.chat.errors import classify, malformed
from hermes_nb.models.chat.sse import StreamDecoder
from hermes_nb.models.chat.stream import LIMIT, Assembly
from hermes_nb.models.chat.wire import KEY_HEADER, Asked, Pieces, Wire, WireConversation
from hermes_nb.models.profiles import (
    OPENAI,
    Profile,
    is_loopback,
    priced,
    profile_for,
    warm_prices,
)
from hermes_nb.models.text_calls import Strategy, Structured, TextCalls
from hermes_nb.safety.redact import without_secrets

if TYPE_CHECKING:
    from openai import AsyncOpenAI, Omit

DUMMY_KEY = "none"
"""Key for servers that need none, because the SDK requires one."""

_STREAMED = {
    "X-Stainless-Raw-Response": "stream",
    "Content-Type": "application/json",
    "Accept-Encoding": "identity",
}
"""The first header makes the SDK return unparsed bytes, like its `with_streaming_response`.

Compression is refused because compressed data is buffered, and so does not stream.
"""
_AT_ONCE = 65_536
"""Maximum bytes to pass on without yielding to the event loop. A server that compresses anyway can
turn one packet into many megabytes, and the stop button has to work while they are processed."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """The SDK client for one address and key in one event loop."""

    client: AsyncOpenAI
    ending: AsyncGenerator[None, None]
    """Closes the client when it is itself closed, or when the loop ends."""
    users: WeakSet[OpenAIChat]


_SHARED: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Shared] = {}


async def _until_the_loop_ends(client: AsyncOpenAI) -> AsyncGenerator[None, None]:
    """Keep a client open until the event loop closes its async generators, then close the client.

    Without this, every `asyncio.run` of a script would leak a socket.
    """
    try:
        yield
    finally:
        await client.close()


SIGN_OF_LIFE = 5.0
"""Seconds between empty deltas while no part of a reply can be shown, such as during a long
call."""
_DRAIN = 0.1
"""Seconds to wait after the end mark for the end of the response, which frees its connection."""
_BROKEN_OFF = (FailureKind.NETWORK, FailureKind.TIMEOUT)
_REFUSED = (FailureKind.BAD_REQUEST, FailureKind.NOT_FOUND)
"""Failures that may be due to the request's content. OpenRouter reports "not found" for a model
without tools."""
_MOST_BYTES = 64 * 2**20
_NO_TOOLS = re.compile(
    r"(?:does not|doesn't|do not|not) support (?:tools?|tool (?:use|calling)|function)"
    r"|tools? (?:is|are|calling is) not supported|support tool use"
    r"|unknown (?:field|parameter).{0,9}tools"
    r"|requires --(?:enable-auto-tool-choice|jinja)|tools param requires",
    re.IGNORECASE,
)


def wire_for(profile: Profile, *, ttl: TTL = "5m") -> Wire:
    """Return a profile's protocol."""
    match profile.wire:
        case "messages":
            from hermes_nb.models.chat.anthropic import AnthropicMessages

            return AnthropicMessages(profile, ttl=ttl)
        case "responses":
            from hermes_nb.models.chat.responses import OpenAIResponses

            return OpenAIResponses(profile)
        case "chat":
            return WireConversation(profile, ttl=ttl)


class OpenAIChat:
    """The model `name` at `base_url`.

    Failures raise `ModelError` in `stream`; nothing is retried.

    Args:
        name: The model's name at the provider.
        base_url: URL of the API; None for `OPENAI_BASE_URL`, or else OpenAI.
        api_key: The key. The default `OPENAI_API_KEY` is used only without `base_url`.
        strategy: How tools are called; None selects it by profile and adapts it to errors.
        profile: How to communicate with the model; None looks it up.
        window: Context window in tokens; None uses the profile's.
        options: Additional fields for every request (temperature, top_p, …). `effort` is translated
            for the provider; a request's own effort takes precedence.
        headers: Additional HTTP headers.
        connect: Timeout for connecting in seconds.
        idle: Timeout in seconds while no data arrives.
        limit: Maximum characters of one reply.
        cache_ttl: Lifetime of cache entries, for providers with breakpoints.
        redacted: Whether to remove secrets from the messages sent.
    """

    def __init__(  # noqa: PLR0913 - settings of one endpoint, all but the name optional
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        strategy: Strategy | None = None,
        profile: Profile | None = None,
        window: int | None = None,
        options: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        connect: float = 10.0,
        idle: float = 120.0,
        limit: int = LIMIT,
        cache_ttl: TTL = "5m",
        redacted: bool = False,
    ) -> None:
        if not base_url:
            base_url = os.environ.get("OPENAI_BASE_URL") or OPENAI
            api_key = api_key or os.environ.get("OPENAI_API_KEY")
        self._name = name
        self.profile = profile or profile_for(name, base_url)
        self._base_url = base_url
        key = (api_key or "").strip()
        self._secret = "" if key == DUMMY_KEY else key
        self._connect, self._idle, self._headers = connect, idle, dict(headers or {})
        self._here = is_loopback(urlsplit(base_url).hostname or "")
        in_text = self.profile.strategy == "text" or not self.profile.tools
        self._strategy = strategy or (TextCalls() if in_text else Structured())
        self._may_switch = strategy is None
        self._window = window or self.profile.window
        self._options = dict(options or {})
        if "max_tokens" in self._options:
            self._options[self.profile.max_tokens] = self._options.pop("max_tokens")
        self._effort = str(self._options.pop("effort", ""))
        self._redacted: Memo[Message] | None = Memo() if redacted else None
        self._limit = limit
        self._cache_ttl = cache_ttl
        self._wire = wire_for(self.profile, ttl=cache_ttl)
        self._serialised: dict[str, tuple[object, bytes]] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int | None:
        """The context window in tokens: configured, known, or learnt from an overflow error."""
        return self._window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        if not self._here:
            warm_prices()  # while waiting for the answer
        while True:
            begun = False
            try:
                async with aclosing(self._once(request)) as items:
                    async for item in items:
                        begun = True
                        if isinstance(item, Reply) and not self._here:
                            yield priced(item, self._name, self._base_url, ttl=self._cache_ttl)
                        else:
                            yield item
            except ModelError as error:
                if error.window:
                    self._window = error.window
                if begun or not self._adapt(error):
                    raise
            else:
                return

    async def aclose(self) -> None:
        here = asyncio.get_running_loop()
        for key, shared in tuple(_SHARED.items()):
            if self not in shared.users:
                continue
            shared.users.discard(self)
            if shared.users or _SHARED.pop(key, None) is None:
                continue
            if key[0] is here:
                await shared.ending.aclose()
            elif key[0].is_running():
                asyncio.run_coroutine_threadsafe(shared.client.close(), key[0])

    def body(self, request: Request) -> bytes:
        if (bare := self._redacted) is not None:
            # Each message only once, so that earlier messages remain the same objects and bytes.
            kept = tuple(bare.get(m, partial(without_secrets, m)) for m in request.messages)
            request = replace(request, messages=kept)
        messages = self._strategy.messages(request)
        tools, effort = self._strategy.fields(request), request.effort or self._effort
        asked = Asked(messages, tools, self._options, effort)
        # Join only once: each additional copy of a long conversation costs as much as a short
        # request.
        parts = [b'{"model":', dumps(self._name)]
        for key, value in self._wire.fields(asked):
            parts += (b",", dumps(key), b":")
            parts += value if isinstance(value, Pieces) else (self._field(key, value),)
        parts.append(b"}")
        return b"".join(parts)

    def _field(self, key: str, value: object) -> bytes:
        """Return a field's JSON, cached per object: a turn's tools stay the same object."""
        kept = self._serialised.get(key)
        if kept is None or kept[0] is not value:
            kept = self._serialised[key] = value, dumps(value)
        return kept[1]

    async def _once(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        self._require_key()
        body = self.body(request)
        assembly = Assembly(
            self._strategy.reader(),
            fresh=self._strategy.reader,
            limit=self._limit,
            secret=self._secret,
        )
        decoder, events = StreamDecoder(), self._wire.events()
        read, told = 0, time.monotonic()
        try:
            async with aclosing(self._post(self._wire.path, body)) as pieces:
                async for piece in pieces:
                    values = [*chain.from_iterable(map(events.chunks, decoder.feed(piece)))]
                    for shown in chain.from_iterable(map(assembly.feed, values)):
                        yield shown
                        told = time.monotonic()
                    if values and time.monotonic() - told > SIGN_OF_LIFE:
                        yield ReasoningDelta("")
                        told = time.monotonic()
                    read += len(piece)
                    if assembly.full or read > _MOST_BYTES:
                        break
                    if decoder.done or events.done:
                        await _drain(pieces)
                        break
        except ModelError as error:
            # A reply with a finish reason is complete, however its connection ends.
            if not assembly.ended or error.kind not in _BROKEN_OFF:
                raise
        values = [*chain.from_iterable(map(events.chunks, decoder.finish()))]
        for shown in chain.from_iterable(map(assembly.feed, values)):
            yield shown
        self._require_reply(decoder, assembly)
        rest, reply = assembly.finish(done=decoder.done or events.done)
        for shown in rest:
            yield shown
        if decoder.bad and not (reply.message.parts or reply.message.calls):
            message = "the server's stream could not be read: it had no part of an answer"
            raise malformed(message)
        yield reply

    async def _post(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Send a JSON body and yield the response's bytes; raise `ModelError` for every failure.

        Closing the generator closes the connection, unless the response was read to the end.
        """
        response = None
        try:
            client = await self._client()
            openai = sys.modules["openai"]
            response = await client.post(
                # For a relative path the client would parse the base URL again, twice.
                f"{str(client.base_url).rstrip('/')}/{path}",
                cast_to=object,
                content=body,
                stream=True,
                stream_cls=openai.AsyncStream[object],
                options={"headers": self._headers_of_request(), "follow_redirects": False},
            )
            async with aclosing(response.iter_bytes()) as pieces:
                async for piece in pieces:
                    for start in range(0, len(piece), _AT_ONCE):
                        if start:
                            await asyncio.sleep(0)
                        yield piece[start : start + _AT_ONCE]
        except Exception as error:  # noqa: BLE001 - only transport code runs here
            # `from None`: the exception chain may contain the Authorization header.
            raise classify(error, secret=self._secret) from None
        finally:
            if response is not None:
                await response.close()

    def _headers_of_request(self) -> dict[str, str | Omit]:
        """Return a request's headers; a wire's own key header replaces the usual one."""
        own = self._wire.headers(self._secret)
        usual = {"Authorization": sys.modules["openai"].Omit()} if KEY_HEADER in own else {}
        return {**_STREAMED, **own, **usual}

    async def _client(self) -> AsyncOpenAI:
        headers = frozenset(self._headers.items())
        address = self._base_url, self._secret, self._connect, self._idle, headers
        key = asyncio.get_running_loop(), address
        client = None
        if key not in _SHARED:  # in a thread: it imports openai, and may load certificates
            async with untimed():
                client = await asyncio.to_thread(self._make)
        shared = _SHARED.get(key)  # another task may have been faster
        if shared is None:
            for other in tuple(_SHARED):
                if other[0].is_closed():
                    _SHARED.pop(other, None)
            client = client or self._make()
            shared = _SHARED[key] = _Shared(client, _until_the_loop_ends(client), WeakSet())
            await anext(shared.ending)
        shared.users.add(self)
        return shared.client

    def _make(self) -> AsyncOpenAI:
        import openai

        http_client = None
        if urlsplit(self._base_url).scheme == "http":
            # Without TLS, skip loading certificates (87 ms of CPU per client). A proxy cannot reach
            # this machine's loopback interface.
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            http_client = openai.DefaultAsyncHttpxClient(verify=tls, trust_env=not self._here)
        return openai.AsyncOpenAI(
            api_key=self._secret or DUMMY_KEY,
            base_url=self._base_url,
            max_retries=0,
            timeout=openai.Timeout(
                connect=self._connect, read=self._idle, write=self._idle, pool=self._connect
            ),
            default_headers=self._headers,
            http_client=http_client,
        )

    def _require_key(self) -> None:
        if not (self._secret.isascii() and self._secret.isprintable()):
            message = "the API key contains characters that cannot be sent; copy it again"
            raise ModelError(message, kind=FailureKind.AUTH)
        if self._base_url.startswith(OPENAI) and not self._secret:
            message = "no API key: set OPENAI_API_KEY, or set base_url to another server"
            raise ModelError(message, kind=FailureKind.AUTH)

    def _require_reply(self, decoder: StreamDecoder, assembly: Assembly) -> None:
        if decoder.page:
            raise malformed("the server answered with a web page, not an API reply; check base_url")
        if not assembly.begun:
            message = "the server's answer is not a chat completion; check base_url"
            if not decoder.bad:
                message = "the server sent an empty answer"
            raise malformed(message)

    def _adapt(self, error: ModelError) -> bool:
        """Stop using the feature that the endpoint rejected; return whether to send again."""
        if error.kind not in _REFUSED:
            return False
        if self._may_switch and _NO_TOOLS.search(str(error)):
            self._strategy, self._may_switch = TextCalls(), False
            return True
        return self._wire.adapt(str(error))


async def _drain(pieces: AsyncGenerator[bytes, None]) -> None:
    """Read the rest of a finished response, so that its connection can be reused."""
    with suppress(TimeoutError, ModelError):
        async with asyncio.timeout(_DRAIN):
            async for _ in pieces:
                pass
