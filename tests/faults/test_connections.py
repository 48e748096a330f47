"""Connections that fail, fall silent, break off, or lead elsewhere."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import closing, contextmanager

import pytest
from hermes_nb.core.errors import HermesError
from hermes_nb.core.events import ToolStarted

from tests.faults.provider import retried, told_by
from tests.loopback import (
    DONE,
    Loopback,
    Reply,
    calls,
    chunk,
    disconnect,
    event,
    free_port,
    pause,
    says,
    stall,
    stream,
    text_chunks,
    tool_chunks,
    usage_chunk,
)
from tests.patience import STOPS_WITHIN

# 36: Nobody answers at the address: the turn ends soon, in one line, and works once somebody
# does.
SOON = 20.0
"""Seconds; without connections there is nothing to wait for but the machine itself."""


@contextmanager
def at(port, *replies):
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
    result = cells.ask(ends="error")
    assert cells.run(f"%config HermesMagics.base_url = {cells.server.url!r}").status == "ok"
    assert result.error["ename"] == "TurnFailed"
    assert len(result.error["traceback"]) == 1


# 37: A provider that falls silent is given up after a while; what it said until then is kept.
BEGINNING = [event(each) for each in text_chunks("The beginning of it")[:-1]]
HALF_A_CALL = [
    event(each) for each in tool_chunks(("write_file", {"path": "a", "content": "b"}))[:-3]
]


@pytest.mark.usefixtures("impatient")
def test_37_in_the_middle_of_a_sentence(story, waits):
    turn = story.ask(Reply([*BEGINNING, stall]), fails=True)
    assert "did not answer in time" in turn.error
    assert len(story.server.exchanges) == 3 and len(waits) == 2
    assert turn.messages[-1].interrupted
    assert turn.messages[-1].text == "The beginning of it", "the partial answer, once"
    assert all(each.left.wait(10) for each in story.server.exchanges), "its connection is closed"
    story.goes_on()
    assert "The beginning of it" in story.server.bodies[-1]["messages"][2]["content"]


@pytest.mark.usefixtures("impatient")
def test_37_before_the_first_word(story):
    turn = story.ask(Reply([stall]), says("Now I am awake."))
    assert turn.text == "Now I am awake."
    assert len(retried(turn)) == 1


@pytest.mark.usefixtures("impatient")
def test_37_in_the_middle_of_a_call(story):
    turn = story.ask(Reply([*HALF_A_CALL, stall]), fails=True)
    assert not any(isinstance(each, ToolStarted) for each in turn.events)
    assert not list(story.work.iterdir())


@pytest.mark.usefixtures("impatient")
def test_37_once_and_then_all_of_it(story):
    turn = story.ask(Reply([*BEGINNING, stall]), says("The whole of it."))
    assert turn.text == "The whole of it."
    assert [message.text for message in turn.messages] == ["go", "The whole of it."]


@pytest.mark.usefixtures("impatient")
def test_37_behind_the_end_mark(story):
    ended = [event(each) for each in text_chunks("All of it.")] + [event(usage_chunk()), DONE]
    turn = story.ask(Reply([*ended, stall]))
    assert turn.text == "All of it."
    assert turn.usage.input == 10
    assert not retried(turn)


@pytest.mark.usefixtures("impatient")
def test_37_behind_the_last_word(story):
    """Without an end mark, an answer that says itself that it is whole is whole."""
    ended = [event(each) for each in text_chunks("All of it.")]
    turn = story.ask(Reply([*ended, stall]))
    assert turn.text == "All of it."
    assert not retried(turn)
    assert len(story.server.exchanges) == 1


@pytest.mark.usefixtures("impatient")
def test_37_signs_of_life_are_no_silence(story):
    beats = [b": still thinking\n\n", pause(0.2)] * 5
    turn = story.ask(Reply([*beats, *[event(each) for each in text_chunks("At last.")], DONE]))
    assert turn.text == "At last."
    assert not retried(turn)


@pytest.mark.usefixtures("impatient")
def test_37_a_word_at_a_time_is_no_silence(story):
    words = [step for n in range(6) for step in (event(chunk({"content": f"{n} "})), pause(0.2))]
    turn = story.ask(Reply([*words, event(chunk(finish="stop")), DONE]))
    assert turn.text.split() == list("012345")
    assert not retried(turn)


@pytest.mark.usefixtures("impatient")
@pytest.mark.kernel
def test_37_a_stop_ends_the_silence(cells):
    result = cells.ask(Reply([*BEGINNING, stall]), allow_stdin=True, stop_on="The beginning")
    assert result.stop_seconds < STOPS_WITHIN
    assert "The beginning of it" in result.markdown
    assert cells.server.exchanges[0].left.wait(10)
    assert "The beginning of it" in cells.goes_on()[2]["content"]


# 38: A connection that breaks in the middle of a reply: asked again, and nothing is there twice.
def reset(exchange):
    """Break the connection off without a word of goodbye."""
    exchange.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.socket.close()
    disconnect(exchange)


WRITES = ("write_file", {"path": "made.txt", "content": "once\n"})
TEXT = [event(each) for each in text_chunks("Half of the answer")]
CALL = [event(each) for each in tool_chunks(WRITES)]
BREAKS = {
    "before a word": [],
    "in the text": TEXT[:3],
    "before the end of the text": TEXT[:-1],
    "in the arguments": CALL[:4],
    "behind the arguments": CALL[:-1],
    "in the bytes of an event": [*TEXT[:2], TEXT[2][:20]],
    "in a character": ['data: {"choices": [{"delta": {"content": "é'.encode()[:-1]],
    "in thought": [event(chunk({"reasoning_content": "Let me see. "}))],
    "in text and a call": [*TEXT[:-1], *CALL[:-1]],
}


@pytest.mark.parametrize(("number", "steps"), list(enumerate(BREAKS.values())), ids=BREAKS)
def test_38_nothing_is_there_twice(story, number, steps):
    how = (disconnect, reset)[number % 2]
    whole = stream([chunk({"content": "The whole answer."}), *tool_chunks(WRITES)])
    turn = story.ask(Reply([*steps, how]), whole, says("Done."))
    assert len(retried(turn)) == 1
    assert len(story.server.exchanges) == 3
    texts = [message.text for message in turn.messages if message.role == "assistant"]
    assert texts == ["The whole answer.", "Done."]
    assert len([each for each in turn.events if isinstance(each, ToolStarted)]) == 1
    assert (story.work / "made.txt").read_text(encoding="utf-8") == "once\n"
    assert "reasoning" not in str(story.server.bodies[-1]["messages"][2])
    assert turn.usage.requests == 2


def test_38_each_time(story):
    turn = story.ask(Reply([*TEXT[:3], disconnect]), fails=True)
    assert len(story.server.exchanges) == 3
    assert "no connection" in turn.error or "broke" in turn.error
    assert turn.messages[-1].interrupted
    assert "Half of the answer".startswith(turn.messages[-1].text)
    assert turn.messages[-1].text


@pytest.mark.parametrize("end", [[], [event(usage_chunk())], [event(usage_chunk()), DONE]])
@pytest.mark.parametrize("how", [disconnect, reset])
def test_38_behind_its_end_it_is_whole(story, end, how):
    """An answer that says itself that it is whole needs no polite end of the connection."""
    turn = story.ask(Reply([*TEXT, *end, how]))
    assert turn.text == "Half of the answer"
    assert not retried(turn)
    assert len(story.server.exchanges) == 1


@pytest.mark.kernel
def test_38_what_the_cell_shows(cells):
    result = cells.ask(Reply([*TEXT[:3], disconnect]), says("The whole answer."), allow_stdin=True)
    assert "The whole answer." in result.markdown
    assert "Half" not in result.markdown
    assert len(cells.server.exchanges) == 2


# 64: A provider that sends the client elsewhere: nothing is sent there, the key least of all.
KEY = "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"


@pytest.fixture
def elsewhere():
    """Yield another server, which must hear nothing."""
    with Loopback(says("from elsewhere")) as other:
        yield other
        assert other.exchanges == [] and other.connections == 0


def moved(status, place):
    headers = {} if place is None else {"Location": place}
    return Reply([b"{}"], status=status, headers=headers, length=True)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_64_to_another_host(server, elsewhere, waits, home, tmp_path, status):
    place = elsewhere.url + "/chat/completions"
    with told_by(server, home, tmp_path / "work", api_key=KEY) as story:
        turn = story.ask(moved(status, place), fails=True)
        assert len(server.exchanges) == 1 and waits == []
        assert "redirects" in turn.error and place in turn.error and "base_url" in turn.error
        assert KEY not in str(turn)
        story.goes_on()


PLACES = {
    "the same host": "/v2/chat/completions",
    "itself": "/v1/chat/completions",
    "nowhere": None,
    "an empty place": "",
    "a file": "file:///etc/passwd",
    "with a name and a password": f"https://user:{KEY}@evil.invalid/",
    "with the key": f"https://evil.invalid/?api_key={KEY}",
    "long": "https://evil.invalid/" + "x" * 20_000,
    "odd characters": "https://evil.invalid/\u00e9\x1b[31m",
    "a script": "javascript:alert(1)",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_64_wherever_it_points(server, waits, home, tmp_path, place):
    with told_by(server, home, tmp_path / "work", api_key=KEY) as story:
        turn = story.ask(moved(302, place), fails=True)
        assert len(server.exchanges) == 1 and waits == []
        assert KEY not in turn.error + str(turn.events)
        assert turn.error.isprintable()
        story.goes_on()


def test_64_in_the_middle_of_the_work(server, elsewhere, waits, home, tmp_path):
    with told_by(server, home, tmp_path / "work", api_key=KEY) as story:
        made = calls(("write_file", {"path": "made.txt", "content": "secret\n"}))
        turn = story.ask(made, moved(307, elsewhere.url), fails=True)
        assert "redirects" in turn.error
        story.goes_on()
