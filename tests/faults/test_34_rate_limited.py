"""A provider that says "too often" is asked again after a bounded wait, which a stop ends."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from tests.conftest import every_call_has_one_result
from tests.faults.cells import calls, says
from tests.faults.provider import retried, told_by
from tests.loopback import failure, stream, text_chunks
from tests.patience import STOPS_WITHIN

CAP = 60.0
"""Seconds; the longest wait, whatever is asked for."""
LIMITED = {"error": {"message": "slow down", "type": "rate_limit_error"}}


def asking(value=None, body=LIMITED, **headers):
    """Return a 429 that asks for a wait in its header."""
    return failure(429, body, **({} if value is None else {"Retry_After": value}), **headers)


def until(seconds):
    """Return a 429 that names a moment, that many seconds from now."""
    return asking(formatdate(time.time() + seconds, usegmt=True))


ASKED = {
    "seconds": (asking("7"), 7, 8),
    "a fraction": (asking("0.25"), 0.25, 1.25),
    "milliseconds": (asking("30", retry_after_ms="1500"), 1.5, 2.5),
    "a date": (lambda: until(30), 20, 32),
    "a date that is over": (lambda: until(-500), 0, 1),
    "a date in another age": (lambda: until(1e9), CAP, CAP),
    "words in the text": (
        asking(body={"error": {"message": "Rate limit reached. Please try again in 2.5s."}}),
        2.5,
        3.5,
    ),
    "a year": (asking("31536000"), CAP, CAP),
    "for ever": (asking("inf"), CAP, CAP),
    "more digits than a number has": (asking("9" * 5_000), CAP, CAP),
    "less than nothing": (asking("-3600"), 0, 1),
    "no number": (asking("nan"), 0, 1),
    "no sense": (asking("soon \u00e9"), 0, 1),
    "an impossible date": (asking("Thu, 99 Foo 99999 99:99:99 GMT"), 0, 1),
    "nothing": (asking(), 0, 1),
    "nothing, in no words": (asking(body=b""), 0, 1),
}


@pytest.mark.parametrize(("reply", "least", "most"), ASKED.values(), ids=ASKED)
def test_34_the_wait_is_bounded(story, waits, reply, least, most):
    turn = story.ask(reply() if callable(reply) else reply, says("Here it is."))
    assert turn.text == "Here it is."
    (again,) = retried(turn)
    assert waits == [again.delay]
    assert least <= again.delay <= most
    assert "429" in again.reason
    story.goes_on()


def test_34_it_gives_up(story, waits):
    turn = story.ask(asking("5"), fails=True)
    assert len(story.server.exchanges) == 3
    assert len(waits) == 2 and len(set(waits)) == 2, "without jitter all clients come back at once"
    assert "limits the rate" in turn.error and "slow down" in turn.error
    assert turn.text == "" and turn.messages[-1].interrupted
    story.goes_on()


def test_34_a_turn_waits_a_minute_in_all(story, waits):
    """A provider that asks for a day is left alone soon, and the error says what it asked for."""
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    reads = calls(("read_file", {"path": "a.txt"}))
    turn = story.ask(asking("40"), reads, asking("86400"), asking("86400"), fails=True)
    assert sum(waits) == CAP and len(waits) == 2
    assert "it asks for 24 h" in retried(turn)[1].reason
    assert "it asks for 24 h, and a turn waits 60 s (`max_wait`)" in turn.error
    story.ask(asking("50"), says("Here."))  # the next turn has a minute of its own
    assert sum(waits) > CAP + 50
    story.goes_on()


def test_34_the_user_allows_more(server, waits, home, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_MAX_WAIT", "7200")
    with told_by(server, home, tmp_path / "work") as story:
        story.ask(asking("3600"), asking("600"), says("Here."))
        assert 4200 <= sum(waits) <= 4202


def test_34_a_spent_quota_is_not_waited_for(story, waits):
    spent = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    turn = story.ask(asking(body=spent), fails=True)
    assert "no quota left" in turn.error
    assert waits == [] and len(story.server.exchanges) == 1
    story.goes_on()


def test_34_in_the_middle_of_the_work(story, waits):
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    turn = story.ask(calls(("read_file", {"path": "a.txt"})), asking("3"), says("It says seven."))
    assert turn.text == "It says seven."
    assert "seven" in story.results[0]
    assert story.server.bodies[1] == story.server.bodies[2], "the same request, byte for byte"
    assert len([m for m in turn.messages if m.role == "tool"]) == 1
    assert every_call_has_one_result(turn.messages)


@pytest.mark.kernel
def test_34_a_stop_ends_the_wait(cells):
    result = cells.ask(asking("3600"), allow_stdin=True, stop_on="limits the rate", timeout=90)
    assert result.status == "error"
    assert result.error["traceback"] == ["stopped"]
    assert result.stop_seconds < STOPS_WITHIN
    assert len(cells.server.exchanges) == 1
    roles = [message["role"] for message in cells.goes_on()]
    assert roles == ["system", "user", "assistant", "user"]


@pytest.mark.kernel
def test_34_the_cell_says_what_it_waits_for(cells):
    shown = cells.ask(asking("0", body=LIMITED), stream(text_chunks("Here.")), allow_stdin=True)
    assert shown.status == "ok"
    assert "Here." in shown.markdown
    assert "slow down" not in shown.markdown, "what went wrong is over"
