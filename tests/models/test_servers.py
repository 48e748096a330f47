"""Servers on this machine are found by what they answer, and nothing else is taken for one."""

from __future__ import annotations

import socket

import pytest
from hermes_nb.models.servers import local_servers, models_at

from tests.loopback import Loopback, document, failure

LISTED = {"data": [{"id": "text-embedding-3"}, {"id": "qwen3-coder"}, {"id": "gemma3"}]}


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_lists_its_models_without_the_embedding_ones():
    with Loopback(document(LISTED)) as server:
        assert models_at(server.url, api_key="sk-test") == ("qwen3-coder", "gemma3")
        assert server.exchanges[0].path.endswith("/models")
        assert server.exchanges[0].headers["authorization"] == "Bearer sk-test"


@pytest.mark.parametrize(
    "reply",
    [
        failure(404, b"<html>not here</html>"),
        failure(200, b"<html>some other service</html>"),
        document({"data": "nonsense"}),
        document(["x"]),
        document({"data": [{"name": "no id"}]}),
    ],
)
def test_something_else_on_the_port_is_no_model_server(reply):
    with Loopback(reply) as server:
        assert models_at(server.url) == ()


def test_nobody_there_is_no_server():
    assert models_at(f"http://127.0.0.1:{closed_port()}/v1") == ()
    assert models_at("file:///etc/passwd") == ()


def test_the_first_server_of_the_table_wins():
    with Loopback(document(LISTED)) as server:
        nobody = f"http://127.0.0.1:{closed_port()}/v1"
        found = local_servers([("Away", nobody), ("Here", server.url), ("Also", server.url)])
    assert [served.name for served in found] == ["Here", "Also"]
    assert found[0].models[0] == "qwen3-coder"
