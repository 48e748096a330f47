"""A provider that sends the client elsewhere: nothing is sent there, the key least of all."""

from __future__ import annotations

import pytest

from tests.faults.cells import calls, says
from tests.faults.provider import told_by
from tests.loopback import Loopback, Reply

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
