"""Logins to MCP servers: a whole story as a user types it, and attempts to steal from it."""

from __future__ import annotations

import asyncio
import re
import stat
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.models.scripted import call
from hermes_nb.safety.protected import why_secret
from hermes_nb.tools.mcp_login import login, revoke, store_login, stored_login
from hermes_nb.tools.mcp_tools import LOGINS, McpTools
from hermes_nb.tools.mcp_wire import specs
from starlette.responses import JSONResponse

from tests.notebook.conftest import desk, shell
from tests.tools.mcp.authority import (
    METADATA,
    Authority,
    Running,
    Thief,
    redirected,
    returned,
    stored,
    visited,
)

__all__ = ["desk", "shell"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:Field 'lifespan'"),  # 1.28 with a newer pydantic
    pytest.mark.filterwarnings("ignore:[^$]*MemoryObject"),  # which it leaves open after an error
]


@pytest.fixture
def authority():
    authority = Authority()
    running = Running(authority.app)
    authority.url = f"{running.url}/mcp"
    yield authority
    running.close()


@pytest.fixture
def thief():
    thief = Thief()
    running = Running(thief.app)
    thief.url = running.url
    yield thief
    running.close()


def spec_of(url, home, **oauth):
    found = specs({"web": {"url": url, "oauth": oauth}}, {}, "config.yaml")["web"]
    return replace(found, logins=home / LOGINS)


async def connected(spec):
    """Return what a kernel makes of a server: its state, its error, and a tool's result."""
    tools = McpTools()
    tools.use({"web": spec}, home=spec.logins.parent)
    try:
        await tools.servers.settled(30)
        connection = tools.servers.connections["web"]
        return connection.state, connection.error
    finally:
        tools.servers.close()


def test_a_login_from_its_first_word_to_its_last(desk, home, authority, monkeypatch):
    notes = []

    def note(text):
        notes.append(text)
        visited(text.split("<")[1].split(">")[0])

    monkeypatch.setattr(desk.agent, "note", note)
    desk("mcp add web " + authority.url)
    assert "requires a login" in desk("mcp test web")
    assert set(authority.paths) == {"/mcp"}  # nothing that the server names was asked
    assert "logged in" in (told := desk("mcp login web")) and "1 tool" in told
    assert len(notes) == 1 and notes[0].startswith("Log in at <http://127.0.0.1:")
    file = home / LOGINS
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and why_secret(file)
    token = stored(home)["web"]["tokens"]["access_token"]
    assert token in authority.access and token not in told + desk("mcp list")
    desk.agent.new()
    desk.agent.configure("approve", "all")
    desk.plays(call("mcp__web__whisper"), "done")
    desk.ask()
    assert "the secret" in desk.model.requests[-1].messages[-1].text
    assert "They are revoked" in desk("mcp remove web")
    assert not authority.access and not authority.refresh and "web" not in stored(home)
    desk.agent.close()


def test_the_address_is_pasted_where_the_browser_is_elsewhere(desk, home, authority, monkeypatch):
    pages = []
    monkeypatch.setattr(
        desk.agent, "note", lambda text: pages.append(text.split("<")[1].split(">")[0])
    )
    monkeypatch.setattr("hermes_nb.notebook.commands.mcp.can_ask", lambda _: True)
    monkeypatch.setattr("builtins.input", lambda _: returned(pages[0]))
    desk("mcp add web " + authority.url)
    assert "logged in" in desk("mcp login web paste")
    assert stored(home)["web"]["tokens"]["access_token"] in authority.access
    desk.agent.close()


def test_tokens_are_refreshed_by_one_kernel_for_all(home, authority):
    """A refresh token works once here, so a second kernel must use what the first one got."""
    spec = spec_of(authority.url, home)

    async def story():
        await login(spec, visited)
        first = stored(home)["web"]["tokens"]
        store_login(spec, {**stored(home)["web"], "expires": time.time() - 1})
        authority.access.clear()
        states = await asyncio.gather(*(connected(spec) for _ in range(3)))
        return first, states

    first, states = asyncio.run(story())
    assert [state for state, _ in states] == ["ready"] * 3, states
    assert authority.paths.count("/token") == 2  # the login's, and one refresh
    assert stored(home)["web"]["tokens"]["refresh_token"] != first["refresh_token"]


def test_tokens_that_were_taken_away_ask_for_a_login_and_open_no_page(home, authority):
    spec = spec_of(authority.url, home)

    async def story():
        await login(spec, visited)
        tools = McpTools()
        tools.use({"web": spec}, home=home)
        await tools.servers.settled(30)
        authority.access.clear()
        authority.paths.clear()
        with pytest.raises(ToolError, match="it requires a login: `%hermes mcp login web`"):
            await tools.servers.there("web", lambda each: each.request(lambda s: s.list_tools()))
        await asyncio.to_thread(tools.servers.close)
        return await connected(spec)

    state, error = asyncio.run(story())
    assert state == "ended" and "it requires a login" in error
    assert set(authority.paths) == {"/mcp"}


def test_tokens_go_to_the_address_that_they_were_made_for(home, authority, thief):
    """A server of the same name at another address gets none of them."""
    seen = []

    async def reply(scope, receive, send):
        seen.append(dict(scope["headers"]).get(b"authorization"))
        await JSONResponse({}, 401)(scope, receive, send)

    spec = spec_of(authority.url, home)
    asyncio.run(login(spec, visited))
    other = Running(lambda _: reply)
    try:
        _, error = asyncio.run(connected(replace(spec, url=f"{other.url}/mcp")))
    finally:
        other.close()
    assert "requires a login" in error and seen and set(seen) == {None}


def test_a_client_that_is_registered_already(home, authority):
    """By its identifier, or by the address of its metadata: nothing is registered then."""
    from mcp.shared.auth import OAuthClientInformationFull

    with Running(lambda _: None).socket as free:
        port = free.getsockname()[1]
    document = "https://client.example/metadata.json"
    for name in ("mine", document):
        authority.clients[name] = OAuthClientInformationFull.model_validate(
            {
                "client_id": name,
                "redirect_uris": [f"http://127.0.0.1:{port}/callback"],
                "token_endpoint_auth_method": "none",
                "grant_types": ["authorization_code", "refresh_token"],
            }
        )
    for own in ({"client_id": "mine"}, {"client_metadata_url": document}):
        changes = {"client_id_metadata_document_supported": True}
        authority.replies[METADATA] = authority.metadata(**changes)
        asyncio.run(login(spec_of(authority.url, home, redirect_port=str(port), **own), visited))
        assert stored(home)["web"]["client"]["client_id"] == next(iter(own.values()))
    assert "/register" not in authority.paths


def refused(spec, show=visited, paste=None):
    """Log in, and return why that failed; nothing may have been stored."""
    with pytest.raises(ToolError) as failed:
        asyncio.run(login(spec, show, paste))
    assert not stored_login(spec)
    return str(failed.value)


THEFTS = {
    "the code of another server": (lambda a, _: setattr(a, "iss", "https://evil.example"), "evil"),
    "a code without the promised issuer": (
        lambda a, _: (
            setattr(a, "iss", ""),
            a.replies.update(
                {METADATA: a.metadata(authorization_response_iss_parameter_supported=True)}
            ),
        ),
        "an unnamed server",
    ),
    "the metadata of another server": (
        lambda a, _: a.replies.update({METADATA: a.metadata(issuer="https://evil.example")}),
        "evil.example",
    ),
    "tokens from a redirect": (
        lambda a, t: a.replies.update({"/token": redirected(f"{t.url}/token")}),
        "redirects a login to another server",
    ),
    "registration by a redirect": (
        lambda a, t: a.replies.update({"/register": redirected(f"{t.url}/register")}),
        "redirects a login to another server",
    ),
    "tokens in clear text": (
        lambda a, _: a.replies.update(
            {METADATA: a.metadata(token_endpoint="http://evil.example/token")}
        ),
        "a login needs https",
    ),
    "a login page in clear text": (
        lambda a, _: a.replies.update(
            {METADATA: a.metadata(authorization_endpoint="http://evil.example/authorize")}
        ),
        "not reached by https",
    ),
    "a code that has expired": (lambda a, _: setattr(a, "code_lifetime", -1), "expired"),
}


@pytest.mark.parametrize("theft", THEFTS)
def test_a_theft_is_refused(home, authority, thief, theft):
    prepare, why = THEFTS[theft]
    authority.issuer = authority.url.removesuffix("mcp")
    prepare(authority, thief)
    assert why in refused(spec_of(authority.url, home))
    assert not thief.got and not authority.access


def test_an_answer_with_a_wrong_state_is_refused(home, authority):
    """The port ignores it and waits for the right one, which counts once."""
    seen = []

    def show(url):
        async def browser():
            right = await asyncio.to_thread(returned, url)
            wrong = right.replace("state=", "state=x")
            for address in (wrong, right.replace("/callback", "/other"), right, right):
                seen.append(await asyncio.to_thread(status, address))

        shown.append(asyncio.ensure_future(browser()))

    def status(address):
        try:
            with urllib.request.urlopen(address, timeout=10) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return "closed"

    async def story():
        await login(spec_of(authority.url, home), show)
        await asyncio.gather(*shown)

    shown = []
    asyncio.run(story())
    assert seen[:3] == [400, 400, 200] and seen[3] in (400, "closed")
    assert authority.paths.count("/token") == 1
    spec = spec_of(authority.url, home / "other")
    pages = []
    pasted = lambda _: returned(pages[0]).replace("state=", "state=x")  # noqa: E731
    assert "belongs to another login" in refused(spec, pages.append, pasted)


def test_a_code_that_was_used_is_refused(home, authority):
    """The address of one login is worth nothing in another, nor is its code."""
    pages, answers = [], []

    def paste(_):
        answers.append(returned(pages[-1]))
        return answers[-1]

    def code(address):
        return re.search("code=([^&]+)", address)[1]

    asyncio.run(login(spec_of(authority.url, home), pages.append, paste))
    spec = spec_of(authority.url, home / "other")
    assert "belongs to another login" in refused(spec, pages.append, lambda _: answers[0])
    again = lambda _: (new := returned(pages[-1])).replace(code(new), code(answers[0]))  # noqa: E731
    assert "does not exist" in refused(spec, pages.append, again)


def test_a_server_that_redirects_gets_no_token_stolen(home, authority, thief):
    spec = spec_of(authority.url, home)

    async def story():
        await login(spec, visited)
        authority.replies["/mcp"] = redirected(f"{thief.url}/mcp")
        return await connected(spec)

    state, error = asyncio.run(story())
    assert state == "ended" and not thief.got, error


def test_tokens_are_deleted_where_they_cannot_be_revoked(home, authority):
    spec = spec_of(authority.url, home)

    async def story():
        await login(spec, visited)
        authority.replies["/revoke"] = JSONResponse({}, 503)
        return await revoke(spec)

    assert "HTTP 503" in asyncio.run(story())
    assert not stored_login(spec)


def test_a_server_without_a_login_says_so(home, authority):
    authority.replies["/mcp"] = JSONResponse({}, 400)
    assert "did not ask for a login" in refused(spec_of(authority.url, home))
