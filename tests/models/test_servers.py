"""Servers on this machine are found by what they answer, and nothing else is taken for one."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import pytest
from hermes_nb.models.servers import ListedModel, local_servers, models_at, reach, window_at

from tests.loopback import Loopback, Reply, document, failure, free_port
from tests.patience import SOON

LISTED = {"data": [{"id": "text-embedding-3"}, {"id": "qwen3-coder"}, {"id": "gemma3"}]}


def test_a_server_lists_its_models_without_the_embedding_ones():
    with Loopback(listing=document(LISTED)) as server:
        assert models_at(server.url, api_key="sk-test") == ("qwen3-coder", "gemma3")
        assert server.asked[0].path.endswith("/models")
        assert server.asked[0].headers["authorization"] == "Bearer sk-test"


@pytest.mark.parametrize(
    ("said", "window"),
    [
        ({"max_model_len": 8_192}, 8_192),  # vLLM
        ({"context_window": 131_072, "max_completion_tokens": 4_096}, 131_072),  # Groq
        ({"context_length": 200_000, "top_provider": {}}, 200_000),  # OpenRouter
        ({"max_context_length": 32_768}, 32_768),  # Mistral
        ({"meta": {"n_ctx": 4_096, "n_ctx_train": 262_144}}, 4_096),  # llama.cpp
        ({"meta": {"n_ctx_train": 262_144}}, None),
        ({"context_length": 0, "meta": None}, None),
        ({"context_length": True}, None),
        ({"max_model_len": "8192"}, None),
        ({}, None),
    ],
)
def test_a_server_may_say_how_long_its_window_is(said, window):
    entry = {"id": "qwen3-coder", "aliases": ["coder"], **said}
    with Loopback(listing=document({"data": [{"id": "gemma3"}, entry]})) as server:
        other, listed = reach(server.url).chatting
        assert (other, listed.window) == (ListedModel(name="gemma3"), window)
        assert window_at(server.url, "coder") == window_at(server.url, "qwen3-coder") == window
        assert window_at(server.url, "gemma3") is None


@pytest.mark.parametrize(
    "reply",
    [
        *(failure(404, b"<html>not here</html>"), failure(200, b"<html>some other service</html>")),
        *(document({"data": "nonsense"}), document(["x"]), document({"data": ["x"]})),
        document({"data": [{"name": "no id"}]}),
    ],
)
def test_something_else_on_the_port_is_no_model_server(reply):
    with Loopback(listing=reply) as server:
        assert models_at(server.url) == ()


def test_nobody_there_is_no_server_and_a_redirect_takes_no_key_anywhere():
    assert models_at(f"http://127.0.0.1:{free_port()}/v1") == ()
    assert models_at("file:///etc/passwd") == ()
    with Loopback(listing=document(LISTED)) as other:
        moved = Reply(status=302, headers={"Location": f"{other.url}/models"}, length=True)
        with Loopback(listing=moved) as server:
            assert models_at(server.url, api_key="sk-test") == ()
        assert other.asked == []


def test_the_first_server_of_the_table_wins():
    with Loopback(listing=document(LISTED)) as server:
        nobody = f"http://127.0.0.1:{free_port()}/v1"
        found = local_servers([("Away", nobody), ("Here", server.url), ("Also", server.url)])
    assert [served.identity.name for served in found] == ["Here", "Also"]
    assert found[0].models[0] == "qwen3-coder"


@contextmanager
def speaking(*pieces, pause=0.0):
    """A server that speaks no HTTP of ours: it sends these bytes to whoever connects."""
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                for piece in pieces:
                    try:
                        connection.sendall(piece)
                    except OSError:
                        break
                    if ended.wait(pause):
                        break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 banana\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n" + b"[" * 400_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ],
)
def test_what_speaks_another_language_is_no_model_server(said):
    with speaking(said) as url:
        assert models_at(url) == ()


def test_a_server_that_drips_is_not_waited_for():
    drops = [b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", *[b" "] * 900]
    with speaking(*drops, pause=0.05) as url:
        began = time.monotonic()
        assert models_at(url, timeout=0.3) == ()
        assert time.monotonic() - began < SOON


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch):
    with Loopback(listing=document(LISTED)) as server, Loopback(listing=failure(502, {})) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert models_at(server.url) == ("qwen3-coder", "gemma3")
        assert proxy.asked == []


def test_a_server_of_anthropics_protocol_gets_its_own_headers():
    with Loopback(listing=document({"data": [{"type": "model", "id": "claude-x"}]})) as server:
        found = reach(server.url, api_key="sk-ant-x", wire="messages")
        (asked,) = server.asked
    assert [each.name for each in found.chatting] == ["claude-x"]
    assert asked.path == "/v1/models?limit=1000"
    assert asked.headers["x-api-key"] == "sk-ant-x"
    assert "authorization" not in asked.headers
