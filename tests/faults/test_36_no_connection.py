"""Nobody answers at the address: the turn ends soon, in one line, and works once somebody does."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, contextmanager

import pytest
from hermes_nb.core.errors import HermesError

from tests.faults.cells import says
from tests.faults.provider import free_port, retried, told_by
from tests.loopback import Loopback

SOON = 20.0
"""Seconds; without connections there is nothing to wait for but the machine itself."""


@contextmanager
def at(port, *replies):
    """Yield a server at that port."""
    server = Loopback(*replies)
    http = server._server
    http.socket.close()
    http.socket = socket.create_server(("127.0.0.1", port))
    with server:
        yield server


@contextmanager
def rude(port, act):
    """Accept connections at that port, and do `act` with each of them."""
    listening = socket.create_server(("127.0.0.1", port))

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with closing(connection), contextmanager(act)(connection):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def hangs_up(connection):
    yield


def speaks_something_else(connection):
    connection.recv(65_536)
    connection.sendall(b"220 mail.example ESMTP ready\r\n")
    yield


def ends_in_its_headers(connection):
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/eve")
    yield


def lies_about_its_length(connection):
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{}")
    yield


def test_36_refused_until_it_is_there(waits, home, tmp_path):
    port = free_port()
    with (
        Loopback() as unused,
        told_by(unused, home, tmp_path / "work", base_url=f"http://127.0.0.1:{port}/v1") as story,
    ):
        begun = time.monotonic()
        turn = story.ask(fails=True)
        assert time.monotonic() - begun < SOON
        assert "no connection to the provider" in turn.error
        assert len(retried(turn)) == 2 and len(waits) == 2
        assert turn.text == "" and turn.usage.requests == 0
        with at(port, says("unset")) as server:
            story.server = server
            story.goes_on()


@pytest.mark.parametrize(
    "act", [hangs_up, speaks_something_else, ends_in_its_headers, lies_about_its_length]
)
def test_36_somebody_who_is_no_provider(waits, home, tmp_path, act):
    port = free_port()
    with (
        Loopback() as unused,
        told_by(unused, home, tmp_path / "work", base_url=f"http://127.0.0.1:{port}/v1") as story,
    ):
        with rude(port, act):
            turn = story.ask(fails=True)
        assert len(retried(turn)) == 2
        assert turn.text == ""
        with at(port, says("unset")) as server:
            story.server = server
            story.goes_on()


@pytest.mark.parametrize(
    "address", ["http://no-such-host.invalid/v1", "http://[::1]:1/v1", "https://127.0.0.1:1"]
)
def test_36_a_host_that_is_not_there(waits, home, tmp_path, address):
    with Loopback() as unused, told_by(unused, home, tmp_path / "work", base_url=address) as story:
        begun = time.monotonic()
        turn = story.ask(fails=True)
        assert time.monotonic() - begun < SOON
        assert "no connection" in turn.error


@pytest.mark.parametrize(
    "address",
    [
        *("http://127.0.0.1:99999/v1", "gopher://127.0.0.1/v1", "127.0.0.1:8080", "http://"),
        *("http://[oops/v1", "http://\u202e\x1b[31mevil.invalid/", "http://a b.invalid/"),
    ],
)
def test_36_what_is_no_address(waits, home, tmp_path, address):
    with Loopback() as unused, told_by(unused, home, tmp_path / "work", base_url=address) as story:
        with pytest.raises(HermesError) as error:
            story.ask(fails=True).raise_for_failure()
        assert str(error.value).isprintable()
    assert waits == [], "waiting does not make it one"


@pytest.mark.kernel
def test_36_in_a_cell(cells):
    with Loopback(says("unset")) as gone:
        address = gone.url
    cells.ask(says("fine"))
    cells.run(f"%config HermesMagics.base_url = {address!r}")
    result = cells.ask(timeout=90)
    assert cells.run(f"%config HermesMagics.base_url = {cells.server.url!r}").status == "ok"
    assert result.status == "error"
    assert result.error["ename"] == "TurnFailed"
    assert len(result.error["traceback"]) == 1
