"""Connect to MCP servers at a URL, log in to them with OAuth 2.1, and store their tokens.

The SDK's `OAuthClientProvider` does discovery, registration, PKCE and refresh. This module adds
what the SDK leaves to its users or has only in some versions: the page that the browser returns to,
the check of the issuer (RFC 9207), storage for several kernels, revocation, and rules for
addresses: no secret is sent in clear text, or to the target of a redirect to another server.

A login starts only when the user asks for it. At any other time, stored tokens are used and
refreshed, and a server that refuses them can't make Hermes contact any other address.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.threads import in_thread
from hermes_nb.models.profiles import is_loopback
from hermes_nb.tools.mcp_wire import Note, ServerSpec, Streams, Wire, bounded, told_error

if TYPE_CHECKING:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

PATIENCE = 300.0
"""Seconds that the user has to log in."""
PATH = "/callback"
UNUSED = f"http://127.0.0.1{PATH}"
"""Where a browser would return to if a login were running."""
KNOWN = "/.well-known/"
"""Part of the address of every metadata document."""
PLAIN = re.compile(r"https?://[!-;=?-~]+")
"""Addresses that can be shown as a link: printable ASCII without `<` and `>`."""
HEAD = 16_384
"""Maximum bytes of the browser's request."""


def read_logins(file: Path) -> dict[str, dict[str, Json]]:
    """Return the stored logins by server name; a missing or damaged file counts as empty."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def stored_login(spec: ServerSpec) -> dict[str, Json]:
    """Return what is stored for a server at its present address; empty if it has no login."""
    entry = read_logins(spec.logins).get(spec.name) if spec.logins else None
    return entry if isinstance(entry, dict) and entry.get("url") == spec.url else {}


def store_login(spec: ServerSpec, entry: Mapping[str, Json] | None) -> None:
    """Store or remove a server's login, readable only by the user; raise OSError."""
    if spec.logins is None:
        return
    make_private(spec.logins.parent)
    with locked(spec.logins):
        logins = {**read_logins(spec.logins), spec.name: entry}
        text = json.dumps({name: each for name, each in logins.items() if each is not None})
        write_atomic(spec.logins, text.encode(), mode=0o600)
        spec.logins.chmod(0o600)


class Storage:
    """The SDK's token storage for one server. A login starts `fresh`, without what is stored."""

    def __init__(self, spec: ServerSpec, *, fresh: bool) -> None:
        self.spec, self.fresh = spec, fresh
        self.provider: OAuthClientProvider

    async def get_tokens(self) -> OAuthToken | None:
        return self.provider.context.current_tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.provider.context.client_info

    async def set_client_info(self, _info: OAuthClientInformationFull) -> None:
        """Do nothing: a client is stored together with its first tokens."""

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens with everything that is needed to refresh and revoke them."""
        before = stored_login(self.spec).get("tokens") or {}
        if not (tokens.refresh_token or self.fresh):
            tokens.refresh_token = before.get("refresh_token")  # the server keeps using it
        context = self.provider.context
        parts = {
            "tokens": tokens,
            "client": context.client_info,
            "metadata": context.oauth_metadata,
            "resource": context.protected_resource_metadata,
        }
        entry = {
            name: part.model_dump(mode="json", exclude_none=True)
            for name, part in parts.items()
            if part is not None
        }
        expires = context.token_expiry_time
        await in_thread(store_login, self.spec, {**entry, "url": self.spec.url, "expires": expires})

    def load(self) -> None:
        """Use what is stored, which another kernel may have refreshed since."""
        from mcp.shared import auth

        entry, context = stored_login(self.spec), self.provider.context
        if not (self.fresh or entry.get("tokens") is None):
            context.current_tokens = auth.OAuthToken.model_validate(entry["tokens"])
            context.token_expiry_time = entry.get("expires")
            client, metadata, resource = map(entry.get, ("client", "metadata", "resource"))
            if client:
                context.client_info = auth.OAuthClientInformationFull.model_validate(client)
            if metadata:
                context.oauth_metadata = auth.OAuthMetadata.model_validate(metadata)
            if resource:
                found = auth.ProtectedResourceMetadata.model_validate(resource)
                context.protected_resource_metadata = found


def provider(spec: ServerSpec, redirect: str, browser: Browser | None = None) -> Json:
    """Return an `httpx` authentication for a server; without a `browser`, it can't log in."""
    from mcp.client import auth
    from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

    class Provider(auth.OAuthClientProvider):
        """Reads the tokens again before each request, and refreshes them in one kernel only."""

        async def async_auth_flow(self, request: Json) -> Json:
            await in_thread(storage.load)
            flow = super().async_auth_flow(request)
            with ExitStack() as refreshing:
                if spec.logins and not self.context.is_token_valid() and not storage.fresh:
                    lock = locked(spec.logins.with_name("mcp_refresh"), 30)
                    await in_thread(refreshing.enter_context, lock)
                    await in_thread(storage.load)
                try:
                    sent = await anext(flow)
                    while True:
                        if sent is request:
                            refreshing.close()
                        sent = await flow.asend((yield sent))
                except StopAsyncIteration:
                    return
                finally:
                    await flow.aclose()

    own = spec.oauth
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "Hermes",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
        }
    )
    storage = Storage(spec, fresh=browser is not None)
    storage.provider = made = Provider(
        spec.url,
        metadata,
        storage,
        redirect_handler=browser.opened if browser else None,
        callback_handler=browser.returned if browser else None,
        client_metadata_url=own.get("client_metadata_url"),
    )
    if own.get("client_id"):
        method = "client_secret_basic" if own.get("client_secret") else "none"
        client = {**own, "redirect_uris": [redirect], "token_endpoint_auth_method": method}
        made.context.client_info = OAuthClientInformationFull.model_validate(client)
    if browser:
        browser.context = made.context
    return made


def guard(client: Json, spec: ServerSpec, metadata: dict[str, Json] | None = None) -> None:
    """Make an HTTP client refuse addresses that must not see a login's secrets.

    During a login, the authorization server's metadata is copied to `metadata` as it was sent.
    """
    local = is_loopback(urlsplit(spec.url).hostname or "")

    async def asked(request: Json) -> None:
        if request.url.scheme != "https" and not (local and is_loopback(request.url.host)):
            raise ToolError(f"a login needs https, which {request.url.host!r} does not use")

    async def answered(response: Json) -> None:
        here = response.request.url
        if response.has_redirect_location:
            to = here.join(response.headers["location"])
            if (to.scheme, to.host, to.port) != (here.scheme, here.host, here.port):
                raise ToolError(f"it redirects a login to another server, {to.host!r}")
        if metadata is not None and KNOWN in here.path and response.status_code == HTTPStatus.OK:
            document = json.loads(await response.aread())
            metadata.update(document if "issuer" in document else {})

    client.event_hooks["request"].append(asked)
    client.event_hooks["response"].append(answered)


QUESTION = "Address that your browser returned to: "


class Browser:
    """The user's part of a login: the page to open, and the address that it returns to.

    Args:
        listener: The socket that the browser returns to; None to ask for the address instead.
        show: Displays the address of the login page.
        paste: Asks the user for the address that the browser has returned to.
    """

    def __init__(
        self,
        listener: socket.socket | None,
        show: Callable[[str], None],
        paste: Callable[[str], str],
    ) -> None:
        self.listener, self.show, self.paste = listener, show, paste
        self.metadata: dict[str, Json] = {}
        """The authorization server's metadata, as it was sent."""
        self.context: Json = None
        self._state = ""
        self._answer: asyncio.Future[dict[str, str]] = asyncio.Future()

    async def opened(self, url: str) -> None:
        """Show the login page, if it belongs to the server that the MCP server named."""
        named, issuer = self.context.auth_server_url, str(self.metadata.get("issuer") or "")
        if issuer and named and issuer.rstrip("/") != str(named).rstrip("/"):
            raise ToolError(f"the login server {named} says that it is {issuer}")
        address = urlsplit(url)
        safe = address.scheme == "https" or is_loopback(address.hostname or "")
        if not (safe and PLAIN.fullmatch(url)):
            raise ToolError(f"its login page {url.partition('?')[0]} is not reached by https")
        self._state = parse_qs(address.query)["state"][0]
        self.show(url)

    async def returned(self) -> Json:
        """Return the login's code and state; raise `ToolError` if it is refused."""
        if self.listener is None:
            answer = _answer(self.paste(QUESTION))
        else:
            server = await asyncio.start_server(self._serve, sock=self.listener, limit=HEAD)
            async with server:
                answer = await self._answer
        if answer.get("state") != self._state:
            raise ToolError("the address belongs to another login (its state differs)")
        given, issuer = answer.get("iss"), self.metadata.get("issuer")
        required = self.metadata.get("authorization_response_iss_parameter_supported") is True
        if (given is not None or required) and given != issuer:
            raise ToolError(
                f"the code comes from {given or 'an unnamed server'}, not from {issuer}"
            )
        if "error" in answer:
            raise ToolError(answer.get("error_description") or answer["error"])
        from mcp.shared import auth

        code = (answer.get("code", ""), answer.get("state"))
        result = getattr(auth, "AuthorizationCodeResult", None)
        return result(code=code[0], state=code[1], iss=given) if result else code

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the browser; a request that doesn't belong to this login changes nothing."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = ""
        target = head.partition(" ")[2].partition(" ")[0]
        answer, fits = _answer(target), False
        if urlsplit(target).path == PATH and answer.get("state") == self._state:
            fits = not self._answer.done()
        text = "You can close this page and return to the notebook." if fits else "Not this login."
        page = f"<!doctype html><title>Hermes</title><p>{html.escape(text)}</p>".encode()
        status = "200 OK" if fits else "400 Bad Request"
        fields = f"Content-Type: text/html\r\nContent-Length: {len(page)}\r\nConnection: close"
        writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + page)
        await writer.drain()
        writer.close()
        if fits:
            self._answer.set_result(answer)


def _answer(address: str) -> dict[str, str]:
    return {key: each[0] for key, each in parse_qs(urlsplit(address.strip()).query).items()}


@asynccontextmanager
async def over_http(spec: ServerSpec, bridge: Wire, dead: Note) -> AsyncIterator[Streams]:
    """Connect to a server and yield the streams; the first two are a session's.

    `dead(why)` is called when the server requires a login, since 1.x drops errors of a request.
    """
    headers = {"Accept-Encoding": "identity", **spec.headers}
    auth = provider(spec, UNUSED) if await in_thread(stored_login, spec) else None

    async def admitted(response: Json) -> None:
        here, own = response.request.url, urlsplit(spec.url)
        ours = (here.host, here.path.rstrip("/")) == (own.hostname, own.path.rstrip("/"))
        more = "insufficient_scope" in response.headers.get("www-authenticate", "")
        if ours and (more or response.status_code == HTTPStatus.UNAUTHORIZED):
            dead(why := f"it requires a login: `%hermes mcp login {spec.name}`")
            raise ToolError(why)

    async with bridge.client(headers=headers, auth=auth) as client:
        client.event_hooks["response"] = [admitted, bounded]
        if auth is not None:
            guard(client, spec)
        async with bridge.http(spec.url, http_client=client) as streams:
            yield streams


@asynccontextmanager
async def _client(
    spec: ServerSpec, auth: Json = None, metadata: dict[str, Json] | None = None
) -> AsyncIterator[Json]:
    """Yield an HTTP client that is guarded, with the SDK's timeouts."""
    async with Wire().client(auth=auth, headers={"Accept-Encoding": "identity"}) as client:
        client.event_hooks["response"] = [bounded]
        guard(client, spec, metadata)
        yield client


async def login(
    spec: ServerSpec, show: Callable[[str], None], paste: Callable[[str], str] | None = None
) -> None:
    """Log in to a server and store its tokens; raise `ToolError`.

    Args:
        spec: The server, which has a `url`.
        show: Displays the address of the login page.
        paste: Asks the user for the address that the browser returned to. By default, the browser
            runs on this machine and returns to a port of this process.
    """
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", int(spec.oauth.get("redirect_port") or 0)))
        except (OSError, ValueError, OverflowError) as error:
            raise ToolError(f"its `redirect_port` cannot be used: {error}") from error
        if paste is None:
            listener.listen()  # before the page is shown: the browser may be back at once
        redirect = f"http://127.0.0.1:{listener.getsockname()[1]}{PATH}"
        browser = Browser(None if paste else listener, show, paste or str)
        auth = provider(spec, redirect, browser)
        client = await stack.enter_async_context(_client(spec, auth, browser.metadata))
        # The mildest request that needs a login; without a session, a server need not answer it.
        from mcp import types

        headers = {
            **spec.headers,
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": types.LATEST_PROTOCOL_VERSION,
        }
        ping: dict[str, Json] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        try:
            async with (
                asyncio.timeout(PATIENCE),
                client.stream("POST", spec.url, json=ping, headers=headers) as response,
            ):
                status = response.status_code
        except TimeoutError:
            raise ToolError(f"no one logged in within {PATIENCE:g} seconds") from None
        except Exception as error:
            raise ToolError(f"the login failed: {told_error(error)}") from error
        if auth.context.current_tokens is None:
            raise ToolError(f"it did not ask for a login (HTTP {status})")


async def revoke(spec: ServerSpec) -> str:
    """Revoke and remove a server's tokens; return the problem if the server did not revoke them."""
    entry = stored_login(spec)
    if not entry:
        return ""
    problem = ""
    try:
        auth = provider(spec, UNUSED)
        storage: Json = auth.context.storage
        storage.load()
        endpoint = (entry.get("metadata") or {}).get("revocation_endpoint")
        tokens = entry["tokens"]
        kinds = [kind for kind in ("refresh_token", "access_token") if tokens.get(kind)]
        if not endpoint:
            problem = "its login server can't revoke tokens; they stay valid until they expire"
        async with _client(spec) as client:
            for kind in kinds if endpoint else ():
                data = {"token": tokens[kind], "token_type_hint": kind}
                data["client_id"] = str(auth.context.client_info.client_id)
                data, headers = auth.context.prepare_token_auth(data, {})
                response = await client.post(endpoint, data=data, headers=headers)
                if response.status_code != HTTPStatus.OK:
                    problem = f"its login server answered with HTTP {response.status_code}"
    except Exception as error:  # noqa: BLE001 - an SDK can raise anything; the tokens still go
        problem = told_error(error)
    await in_thread(store_login, spec, None)
    return problem
