"""What the doctor says of servers, keys and names, on real servers and where there is none."""

from __future__ import annotations

import json

import pytest
from hermes_nb.agent.settings.config import Settings
from hermes_nb.models.installed import Endpoint
from hermes_nb.models.servers import proxy_for, reach
from hermes_nb.notebook.commands.doctor import endpoints

from tests.loopback import Loopback, Reply, free_port, pause, stall
from tests.patience import SOON

KEY = "sk-" + "a1B2" * 10
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def found(tmp_path):
    """Return a function that says what is found at an endpoint: the state and the text."""

    def tried(base_url="", model="m", api_key=KEY, *, seconds=SOON, **options):
        end = Endpoint(model=model, base_url=base_url, api_key=api_key)
        settings = Settings(home=tmp_path, endpoint=end, **options)
        (finding,) = endpoints(settings, timeout=seconds)
        assert KEY not in finding.text
        return finding.state, finding.text

    return tried


def listing(*names, **entry):
    data = [{"id": name, **entry} for name in names]
    return Reply([json.dumps({"object": "list", "data": data}).encode()], length=True)


def refusal(status, text):
    return Reply([json.dumps({"error": {"message": text}}).encode()], status=status, length=True)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        *((("m",), "m"), (("models/gemini-x",), "gemini-x"), (("llama3:latest",), "llama3")),
        *((("a/b",), "a/b:free"), (("whatever",), "")),
    ],
)
def test_a_model_that_is_served(found, names, wanted):
    with Loopback(listing=listing(*names)) as server:
        state, told = found(server.url, wanted)
    assert state == "ok" and "accepts the key" in told
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"


def test_a_model_that_is_not_served(found):
    with Loopback(listing=listing("qwen3-8b", "qwen3-4b", "other")) as server:
        state, told = found(server.url, "qwen3-80")
    assert state == "problem" and "not among its 3 models, such as qwen3-8b" in told
    with Loopback(listing=listing()) as server:
        assert "serves no model" in found(server.url)[1]


@pytest.mark.parametrize(
    ("reply", "key", "state", "said"),
    [
        (refusal(401, f"wrong key: {KEY}"), KEY, "problem", "copy the key again"),
        (refusal(401, "who are you?"), "", "problem", "requires a key, and none is set"),
        (refusal(403, "Missing scopes: api.model.read"), KEY, "note", "does not let this key list"),
        (refusal(404, "no such page"), KEY, "note", "could not be checked"),
        (refusal(503, "come back"), KEY, "problem", "cannot answer just now (503)"),
        (Reply(status=302, headers={"Location": "http://x.invalid"}), KEY, "problem", "x.invalid"),
        (
            Reply([b"<!doctype html><p>Hi"], headers={"Content-Type": "text/html"}),
            KEY,
            "problem",
            "a web page",
        ),
        (Reply([b'{"data": 7}']), KEY, "problem", "not a list of models"),
        (Reply([b"\xff\xfe{"]), KEY, "problem", ""),
    ],
)
def test_servers_that_answer_otherwise(found, reply, key, state, said):
    with Loopback(listing=reply) as server:
        got, told = found(server.url, api_key=key)
    assert got == state and said in told
    assert len(server.asked) == 1


@pytest.mark.parametrize("reply", [[b"{", *[pause(0.2), b" "] * 40], [stall]])
def test_a_server_that_takes_too_long(found, reply):
    with Loopback(listing=Reply(reply)) as server:
        state, told = found(server.url, seconds=0.5)
    assert state == "problem" and "did not answer within 0.5 s" in told


def test_an_address_without_its_end_is_named(found):
    with Loopback() as server:
        address = server.url.removesuffix("/v1")
        assert found(address) == (
            "problem",
            f"{address} is not the address of a model API; try {address}/v1",
        )
        assert "not a URL such as https" in found("ftp://x")[1]


def test_nobody_there(found):
    port = free_port()
    state, told = found(f"http://127.0.0.1:{port}/v1")
    assert state == "problem" and f"nothing answers at 127.0.0.1:{port}" in told
    with Loopback() as server:
        https = server.url.replace("http://", "https://")
        assert "failed the TLS handshake" in found(https)[1]


def test_a_proxy_is_named_and_not_its_password(found, monkeypatch):
    port = free_port()
    monkeypatch.setenv("HTTP_PROXY", f"http://me:{KEY}@127.0.0.1:{port}")
    state, told = found("http://models.invalid/v1")
    assert state == "problem" and f"through the proxy 127.0.0.1:{port}" in told
    assert proxy_for("http://127.0.0.1:1/v1") == ""
    monkeypatch.setenv("NO_PROXY", "models.invalid")
    assert proxy_for("http://models.invalid/v1") == ""


def test_what_needs_no_server_asks_none(tmp_path):
    assert endpoints(Settings(home=tmp_path, endpoint=Endpoint())) == []
    named = Endpoint(model="m", base_url="http://127.0.0.1:9/v1")
    assert endpoints(Settings(home=tmp_path, endpoint=named, cassette="replay")) == []


def test_the_provider_itself_wants_a_key(found):
    assert "requires a key, and none is set" in found(api_key="")[1]
    assert "copy it again" in found(api_key="sk-\u202e")[1]


def test_fallbacks_are_tried_too(tmp_path):
    with Loopback(listing=listing("m")) as server:
        ends = [Endpoint(model=name, base_url=server.url) for name in ("m", "other")]
        settings = Settings(home=tmp_path, endpoint=ends[0], fallbacks=(ends[1],))
        assert [(f.name, f.state) for f in endpoints(settings)] == [
            ("answer", "ok"),
            ("fallback", "problem"),
        ]


def test_names_are_what_a_server_says_whatever_it_says():
    for document in ([], {"data": [7, {"id": None}, {"aliases": 7}]}, "x", None):
        with Loopback(listing=Reply([json.dumps(document).encode()], length=True)) as server:
            assert reach(server.url).kind in ("listed", "failed")
