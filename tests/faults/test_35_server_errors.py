"""A provider that fails is asked three times, and then the turn ends in one line."""

from __future__ import annotations

import pytest
from hermes_nb.core.events import TextDelta

from tests.faults.cells import calls, says
from tests.faults.provider import MODEL, retried, told_by
from tests.loopback import Loopback, Reply, chunk, event, failure

STATUSES = (500, 502, 503, 504, 520, 529)
PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>" + b"x" * 100_000 + b"</body>"
BODIES = {
    "json": {"error": {"message": "the engine is overloaded", "type": "server_error"}},
    "a page": PAGE,
    "nothing": b"",
    "bytes": bytes(range(256)) * 20,
    "a string": b'"oops"',
    "null": b"null",
    "a list": [{"error": {"code": 503, "message": "UNAVAILABLE"}}],
    "deep": b"[" * 50_000,
    "two lines": {"error": {"message": "first\nsecond\x1b[31m\u202e third"}},
}


@pytest.mark.parametrize(("times", "status"), list(zip([1, 2, 2, 1, 1, 2], STATUSES, strict=True)))
def test_35_it_comes_back(story, waits, times, status):
    turn = story.ask(*[failure(status)] * times, says("Back again."))
    assert turn.text == "Back again."
    assert len(story.server.exchanges) == times + 1 and len(waits) == times
    assert all(str(status) in each.reason for each in retried(turn))
    assert len({exchange.body for exchange in story.server.exchanges}) == 1


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_35_it_does_not(story, body):
    turn = story.ask(failure(503, body), fails=True)
    assert len(story.server.exchanges) == 3
    assert "cannot answer just now (503)" in turn.error
    assert "\x1b" not in turn.error and "\u202e" not in turn.error
    assert turn.text == ""
    story.goes_on()


def test_35_each_failure_another(story):
    turn = story.ask(failure(500), failure(429), failure(502), fails=True)
    assert "502" in turn.error
    story.goes_on()


def test_35_in_the_stream(story):
    broken = Reply(
        [
            event(chunk({"content": "Half of "})),
            event({"error": {"message": "overloaded", "code": 529}}),
        ]
    )
    turn = story.ask(broken, says("All of it."))
    assert turn.text == "All of it."
    assert len(retried(turn)) == 1
    shown = [each.text for each in turn.events if isinstance(each, TextDelta)]
    assert "".join(shown).startswith("Half of ")


def test_35_after_a_tool_has_run(story):
    made = calls(("write_file", {"path": "made.txt", "content": "once\n"}))
    turn = story.ask(made, failure(500), fails=True)
    assert (story.work / "made.txt").read_text(encoding="utf-8") == "once\n"
    assert [message.role for message in turn.messages] == ["user", "assistant", "tool", "assistant"]
    assert turn.messages[-1].interrupted
    story.goes_on()
    assert "made.txt" in story.results[0], "what was done is known"


def test_35_another_provider_answers(server, waits, home, tmp_path):
    with Loopback(says("From the second.")) as second:
        home.mkdir()
        (home / "config.yaml").write_text(
            "fallback_providers:\n"
            f"  - {{model: spare-model, base_url: '{second.url}'}}\n"
            "  - {model: never-asked, base_url: 'http://127.0.0.1:1/v1'}\n",
            encoding="utf-8",
        )
        with told_by(server, home, tmp_path / "work") as story:
            turn = story.ask(failure(503))
            assert turn.text == "From the second."
            assert len(server.exchanges) == 3 and len(second.exchanges) == 1
            assert [each.model for each in retried(turn)] == [MODEL, MODEL, "spare-model"]
            assert second.bodies[0]["model"] == "spare-model"
            assert second.bodies[0]["messages"] == server.bodies[0]["messages"]
            turn = story.ask(failure(503))
            assert turn.text == "From the second."
            assert server.exchanges == [], "the first one rests"


@pytest.mark.kernel
def test_35_the_cell_fails_in_one_line(cells):
    # A bad gateway's own status is retried with real waits: this one is not worth them.
    result = cells.ask(failure(501, PAGE), timeout=90)
    assert result.status == "error"
    assert result.error["ename"] == "TurnFailed"
    (line,) = result.error["traceback"]
    assert "Bad Gateway" in line and len(line) < 500 and "xxx" not in line
