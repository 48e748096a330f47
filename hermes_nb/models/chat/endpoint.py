"""The HTTP side of a provider: one SDK client per event loop, and a body sent as it is.

The SDK is imported on the first request, off the event loop. Its own parameter walk over the whole
conversation (39 to 319 ms of CPU a request, growing with the turn) is passed by: the body goes
through the client's generic `post`, which keeps authentication, headers and error classes.
Redirects are not followed, so a key never reaches another host.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hermes_nb.models.addresses import is_loopback
from hermes_nb.models.chat.classify import classify

if TYPE_CHECKING:
    from openai import AsyncOpenAI

DUMMY_KEY = "none"
"""What servers that need no key are sent: the SDK insists on one."""

_STREAMED = {
    "X-Stainless-Raw-Response": "stream",
    "Content-Type": "application/json",
    "Accept-Encoding": "identity",
}
"""The first is what the SDK's own `with_streaming_response` sets: hand over the bytes unparsed.
What is compressed on its way is held back until there is enough of it, and so does not stream."""
_AT_ONCE = 65_536
"""Bytes that are handed on without a pause. A server that compresses all the same can make many
megabytes of a single packet, and a stop button has to work beside them."""


class Endpoint:
    """A base URL with a key. `idle` bounds the silence within a reply, in seconds."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        connect: float = 10.0,
        idle: float = 120.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self._connect = connect
        self._idle = idle
        self._headers = dict(headers or {})
        self._clients: dict[
            asyncio.AbstractEventLoop, tuple[AsyncOpenAI, AsyncGenerator[None, None]]
        ] = {}

    async def post(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Send a JSON body and yield the reply's bytes; raise `ModelError` for every failure.

        Closing the generator closes the connection, unless the reply was read to its end.
        """
        response = None
        try:
            client = await self._client()
            openai = sys.modules["openai"]
            response = await client.post(
                path,
                cast_to=object,
                content=body,
                stream=True,
                stream_cls=openai.AsyncStream[object],
                options={"headers": _STREAMED, "follow_redirects": False},
            )
            async with aclosing(response.iter_bytes()) as pieces:
                async for piece in pieces:
                    for start in range(0, len(piece), _AT_ONCE):
                        if start:
                            await asyncio.sleep(0)
                        yield piece[start : start + _AT_ONCE]
        except Exception as error:  # noqa: BLE001 - only the transport runs here: all is a failure
            # `from None`: the chain below may quote the Authorization header.
            raise classify(error, secret=self.secret) from None
        finally:
            if response is not None:
                await response.close()

    @property
    def secret(self) -> str:
        """The key that must not appear in any text, empty when it is none."""
        return "" if self.api_key == DUMMY_KEY else self.api_key

    async def aclose(self) -> None:
        """Close the client of the running loop, and ask other running loops to close theirs."""
        clients, self._clients = self._clients, {}
        kept = clients.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept[1].aclose()
        for loop, (client, _) in clients.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(client.close(), loop)

    async def _client(self) -> AsyncOpenAI:
        """Return the running loop's client, made on first use."""
        if "openai" not in sys.modules:
            await asyncio.to_thread(importlib.import_module, "openai")
        loop = asyncio.get_running_loop()
        kept = self._clients.get(loop)
        if kept is None:
            for other in tuple(self._clients):
                if other.is_closed():
                    self._clients.pop(other, None)
            client = self._make()
            kept = self._clients[loop] = client, _until_the_loop_ends(client)
            await anext(kept[1])
        return kept[0]

    def _make(self) -> AsyncOpenAI:
        import openai

        options: dict[str, Any] = {}
        url = urlsplit(self.base_url)
        if url.scheme == "http":
            # No TLS is spoken here, so no certificates are loaded (87 ms of CPU a client). A proxy
            # cannot reach this machine's own loopback.
            options["http_client"] = openai.DefaultAsyncHttpxClient(
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                trust_env=not is_loopback(url.hostname or ""),
            )
        return openai.AsyncOpenAI(
            api_key=self.api_key,
            base_url=self.base_url,
            max_retries=0,
            timeout=openai.Timeout(
                connect=self._connect, read=self._idle, write=self._idle, pool=self._connect
            ),
            default_headers=self._headers,
            **options,
        )


async def _until_the_loop_ends(client: AsyncOpenAI) -> AsyncGenerator[None, None]:
    """Hold a client open: an event loop on its way out closes its open generators, hence this.

    Without it every `asyncio.run` of a script would leave a socket behind.
    """
    try:
        yield
    finally:
        await client.close()
