"""An MCP server behind a login, and its authorization server: the SDK's, with a user who agrees.

PKCE, redirect addresses and clients are checked by the SDK. `replies` answers a path in its place,
as a server does that somebody has taken over.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
import urllib.request
from contextlib import suppress

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthToken
from starlette.responses import JSONResponse, RedirectResponse

from tests.patience import until

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

V2 = "mcpserver" in MCPServer.__module__
METADATA = "/.well-known/oauth-authorization-server"


class Authority:
    """Clients, codes and tokens in memory; a refresh token is used once."""

    def __init__(self):
        self.clients, self.codes, self.access, self.refresh = {}, {}, {}, {}
        self.paths, self.issuer, self.iss = [], "", True
        self.lifetime, self.code_lifetime = 3600, 60
        self.replies, self.resources = {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client):
        self.clients[client.client_id] = client

    async def authorize(self, client, params):
        code = secrets.token_urlsafe(20)
        self.codes[code] = AuthorizationCode(
            code=code,
            client_id=client.client_id,
            scopes=params.scopes or [],
            expires_at=time.time() + self.code_lifetime,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        iss = {"iss": self.issuer if self.iss is True else self.iss} if self.iss else {}
        return construct_redirect_uri(
            str(params.redirect_uri), code=code, state=params.state, **iss
        )

    async def load_authorization_code(self, client, code):
        return self.codes.get(code)

    async def exchange_authorization_code(self, client, code):
        del self.codes[code.code]
        return self._tokens(client, code.scopes, code.resource)

    async def load_refresh_token(self, client, token):
        return self.refresh.get(token)

    async def exchange_refresh_token(self, client, token, scopes):
        if self.refresh.pop(token.token, None) is None:
            raise TokenError("invalid_grant")
        return self._tokens(client, scopes, self.resources[token.token])

    async def load_access_token(self, token):
        found = self.access.get(token)
        return found if found and found.expires_at > time.time() else None

    async def revoke_token(self, token):
        self.access, self.refresh = {}, {}

    def _tokens(self, client, scopes, resource):
        access, refresh = secrets.token_urlsafe(20), secrets.token_urlsafe(20)
        facts = {"client_id": client.client_id, "scopes": scopes}
        end = int(time.time()) + self.lifetime
        self.resources[refresh] = resource
        self.access[access] = AccessToken(token=access, expires_at=end, resource=resource, **facts)
        self.refresh[refresh] = RefreshToken(token=refresh, **facts)
        return OAuthToken(
            access_token=access,
            token_type="Bearer",
            expires_in=self.lifetime,
            refresh_token=refresh,
        )

    def app(self, port):
        self.issuer = f"http://127.0.0.1:{port}/"
        newer = {"validate_token_resource": True}  # 1.28 does not know it
        auth = AuthSettings(
            issuer_url=self.issuer,
            resource_server_url=f"{self.issuer}mcp",
            client_registration_options=ClientRegistrationOptions(enabled=True),
            revocation_options=RevocationOptions(enabled=True),
            **(newer if set(newer) <= set(AuthSettings.model_fields) else {}),
        )
        where = {} if V2 else {"host": "127.0.0.1", "port": port}
        server = MCPServer("behind", auth_server_provider=self, auth=auth, **where)

        @server.tool()
        def whisper() -> str:
            """Tell a secret."""
            return "the secret"

        inner = server.streamable_http_app()

        async def app(scope, receive, send):
            reply = None
            if scope["type"] == "http":
                self.paths.append(scope["path"])
                reply = self.replies.get(scope["path"])
            await (reply or inner)(scope, receive, send)

        return app

    def metadata(self, **changes):
        """Return the metadata with changes, as a reply; None leaves one out."""
        told = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}authorize",
            "token_endpoint": f"{self.issuer}token",
            "registration_endpoint": f"{self.issuer}register",
            "revocation_endpoint": f"{self.issuer}revoke",
            "code_challenge_methods_supported": ["S256"],
            **changes,
        }
        return JSONResponse(told)


class Running:
    """An app on a port of this machine, in a thread of its own."""

    def __init__(self, make):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        app = make(self.socket.getsockname()[1])
        settings = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self.socket]}, daemon=True
        )
        self._thread.start()
        assert until(lambda: self._server.started, 30)

    def close(self):
        self._server.should_exit = True
        self._thread.join(20)
        self.socket.close()


class Thief:
    """A server that somebody else runs: what it was sent."""

    def __init__(self):
        self.got = []

    def app(self, _port):
        async def app(scope, receive, send):
            if scope["type"] == "http":
                self.got.append(scope["path"])
                await JSONResponse({})(scope, receive, send)

        return app


def redirected(url):
    return RedirectResponse(url, 307)


def visited(url):
    """Open a login page as a browser does, beside the test."""

    def visit():
        with suppress(OSError), urllib.request.urlopen(url, timeout=30) as page:
            page.read()

    threading.Thread(target=visit, daemon=True).start()


def returned(url):
    """Return where a browser ends that cannot open the address it is sent to."""

    class Stays(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    try:
        urllib.request.build_opener(Stays).open(url, timeout=30)
    except urllib.error.HTTPError as answer:
        return answer.headers["Location"]
    raise AssertionError("no redirect")


def stored(home):
    return json.loads((home / "mcp_credentials.json").read_text())
