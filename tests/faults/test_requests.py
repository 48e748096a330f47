"""Requests that a server refuses, and conversations that are too long."""

from __future__ import annotations

import base64
import logging
import sqlite3
import time
import urllib.parse
from email.utils import formatdate

import pytest
from hermes_nb.context.archive import Archive
from hermes_nb.context.compressor import Compressor
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import ContextCompressed, TextDelta, TurnEnded
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Toolset
from hermes_nb.models.scripted import ScriptedModel

from tests.conftest import every_call_has_one_result, take_turn
from tests.context.conversations import stored
from tests.core.grammar import check_grammar
from tests.faults.cells import served_kernel
from tests.faults.provider import MODEL, check_request, retried, told_by
from tests.faults.test_stops import is_stopped
from tests.loopback import Loopback, Reply, calls, chunk, event, failure, says, stream, text_chunks
from tests.patience import STOPS_WITHIN

# 34: A provider that says "too often" is asked again after a bounded wait, which a stop ends.
CAP = 60.0
"""Seconds; the longest wait, whatever is asked for."""
LIMITED = {"error": {"message": "slow down", "type": "rate_limit_error"}}


def asking(value=None, body=LIMITED, **headers):
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


def test_34_it_gives_up(story, waits):
    turn = story.ask(asking("5"), fails=True)
    assert len(story.server.exchanges) == 3
    assert len(waits) == 2 and len(set(waits)) == 2, "without jitter all clients come back at once"
    assert "limits the rate" in turn.error and "slow down" in turn.error
    assert turn.text == "" and turn.messages[-1].interrupted


def test_34_a_turn_waits_a_minute_in_all(story, waits):
    """A provider that asks for a day is left alone soon, and the error says what it asked for."""
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    reads = calls(("read_file", {"path": "a.txt"}))
    turn = story.ask(asking("40"), reads, asking("86400"), asking("86400"), fails=True)
    assert sum(waits) == CAP and len(waits) == 2
    assert "it asks to wait 24 h" in retried(turn)[1].reason
    assert "it asks to wait 24 h, and a turn waits at most 60 s (`max_wait`)" in turn.error
    story.ask(asking("50"), says("Here."))  # the next turn has a minute of its own
    assert sum(waits) > CAP + 50


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
    is_stopped(result)
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


# 35: A provider that fails is asked three times, and then the turn ends in one line.
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


def test_35_each_failure_another(story):
    turn = story.ask(failure(500), failure(429), failure(502), fails=True)
    assert "502" in turn.error


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
    result = cells.ask(failure(501, PAGE), ends="error")
    assert result.error["ename"] == "TurnFailed"
    (line,) = result.error["traceback"]
    assert "Bad Gateway" in line and len(line) < 500 and "xxx" not in line


# 48: The provider says that the prompt is too long: compressed, and sent once more; never for
# ever.
TOLD = {
    "openai": {
        "error": {
            "message": "This model's maximum context length is 8192 tokens.",
            "code": "context_length_exceeded",
        }
    },
    "anthropic": {"error": {"message": "prompt is too long: 9000 tokens > 8192 maximum"}},
    "llama.cpp": {
        "error": {"message": "the request exceeds the available context size", "n_ctx": 8192}
    },
}


class Small:
    """Answers long prompts with an overflow, requests for a summary with one, others in kind."""

    def __init__(self, server, overflow, *, most):
        self.overflow, self.most = overflow, most
        self.summaries = 0
        server.take, self._take = self.take, server.take

    def take(self, exchange):
        reply = self._take(exchange)
        if len(exchange.body) > self.most:
            return self.overflow
        if b"and now?" not in exchange.body[-400:] and b"## " in exchange.body[-4_000:]:
            self.summaries += 1
            return says("## Goal\nCount.\n## Progress\nCounted on.")
        return reply


@pytest.fixture
def long_story(story):
    for n in range(12):
        said = says(f"Answer {n}: " + "all is counted. " * 150)
        story.ask(said, prompt=f"Question {n}: what about part {n}?")
    return story


@pytest.mark.parametrize(("status", "told"), list(zip((400, 413, 500), TOLD.values(), strict=True)))
def test_48_compressed_and_sent_once_more(long_story, status, told):
    story = long_story
    before = story.hermes.messages
    size = len(story.server.exchanges[-1].body)
    Small(story.server, failure(status, told), most=size)
    turn = story.ask(says("It fits now."), prompt="and now?")
    assert turn.text == "It fits now."
    (compressed,) = [each for each in turn.events if isinstance(each, ContextCompressed)]
    assert compressed.dropped > 0
    assert len(story.server.exchanges[-1].body) < size
    assert [each.reason for each in retried(turn)] == ["the prompt was too long"]
    assert len(story.hermes.messages) < len(before)
    assert story.hermes.messages[-2].text.startswith("and now?")
    story.goes_on()


def test_48_it_never_fits(long_story):
    story = long_story
    turn = story.ask(failure(400, TOLD["openai"]), prompt="and now?", fails=True)
    assert "context window" in turn.error
    assert len(story.server.exchanges) < 12, "neither for ever nor for a fortune"
    for body in story.server.bodies:
        check_request(body)
    story.goes_on()


def test_48_the_first_question_alone_is_too_long(story):
    turn = story.ask(failure(400, TOLD["openai"]), prompt="why? " * 20_000, fails=True)
    assert "context window" in turn.error
    assert len(story.server.exchanges) <= 4


def test_48_in_the_stream(long_story):
    story = long_story
    size = len(story.server.exchanges[-1].body)
    Small(story.server, Reply([event(TOLD["openai"])]), most=size)
    turn = story.ask(says("It fits now."), prompt="and now?")
    assert turn.text == "It fits now."
    story.goes_on()


# 49: The model that writes summaries fails or says nothing: the turn goes on and nothing is lost.
FAILURES = [
    ModelError("the provider is down", kind=FailureKind.OVERLOADED),
    ModelError("no such model", kind=FailureKind.BAD_REQUEST),
    *(ModelError("key revoked", kind=FailureKind.AUTH), ConnectionResetError("reset"), "", "   \n"),
]


def history():
    messages = []
    for turn in range(40):
        messages.append(Message.user(f"Question {turn}: the limit of part {turn} is {turn}7 rows."))
        messages.append(Message.assistant(f"Answer {turn}. " + "word " * 300))
    return messages


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_49_the_turn_goes_on_and_nothing_is_lost(failure):
    messages = history()
    store, session = stored(messages)
    auxiliary = ScriptedModel([failure], window=32_000)
    main = ScriptedModel(["One.", "Two."], window=32_000)
    engine = Compressor(main, auxiliary=auxiliary, archive=Archive(store, session))
    agent = Agent(main, Toolset(), messages=messages, engine=engine, sinks=[])
    events = take_turn(agent, "and now?")
    check_grammar(events)
    assert events[-1] == TurnEnded("answered")
    (compressed,) = [event for event in events if isinstance(event, ContextCompressed)]
    assert compressed.phase == "extracted"
    assert "could not summarise" in compressed.warning
    assert "revoked" not in compressed.summary
    assert "Question 20" in compressed.summary
    assert every_call_has_one_result(agent.messages)
    assert [row.message for row in store.rows(session)] == messages, "all of it is still stored"

    agent.restore([*agent.messages, *history()])
    events = take_turn(agent, "go on")
    assert events[-1] == TurnEnded("answered")
    assert len(auxiliary.requests) == 1, "no model is asked again so soon"
    (compressed,) = [event for event in events if isinstance(event, ContextCompressed)]
    assert "ten minutes" in compressed.warning


# 50: A key that is refused is not tried again, and no text anywhere shows it.
KEYS = {
    "as openai's": "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4zAb3dEf6h",
    "as nobody's": "my very own key, with spaces & signs",
    "short": "hunter2",
    "hex": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}


def echoes(key):
    return {
        "401": failure(401, {"error": {"message": f"Incorrect API key provided: {key}."}}),
        "403": failure(403, {"error": {"message": f"the key {key} may not do this"}}),
        "revoked": failure(401, {"error": {"code": "key_revoked", "message": f"revoked: {key}"}}),
        "in a page": failure(403, f"<html><title>no {key}</title>{key}</html>".encode()),
        "in plain text": failure(401, f"Bearer {key} is unknown".encode()),
        "in a header": failure(401, {"error": {}}, WWW_Authenticate=f'Bearer realm="{key}"'),
        "in a field": failure(401, {"detail": {"key": key, "headers": {"authorization": key}}}),
        "in capitals of the address": failure(
            401, {"error": {"message": f"?api_key={urllib.parse.quote(key)}"}}
        ),
        "in base64": failure(
            401,
            {"error": {"message": f"Basic {base64.b64encode(f'user:{key}'.encode()).decode()}"}},
        ),
        "twice": failure(401, {"error": {"message": f"{key}{key}"}}),
        "with status 400": failure(400, {"error": {"message": f"API key not valid: {key}"}}),
    }


CASES = {
    f"{kind}, {how}": (key, how)
    for kind, key in KEYS.items()
    for how in echoes(key)
    if kind == "hex" or how in ("401", "in base64")
}


@pytest.mark.parametrize(("key", "how"), CASES.values(), ids=CASES)
def test_50_it_is_not_tried_again_and_not_shown(
    server, waits, home, tmp_path, caplog, capfd, key, how
):
    caplog.set_level(logging.INFO)  # below that, the HTTP library shows what servers send
    caplog.set_level(logging.DEBUG, logger="hermes_nb")
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        turn = story.ask(echoes(key)[how], fails=True)
        assert len(story.server.exchanges) == 1 and waits == []
        assert story.server.exchanges[0].headers["authorization"] == f"Bearer {key}"
        assert "refused the API key" in turn.error
        shown = [turn.error, turn.status, repr(turn), str(turn.events), turn._repr_markdown_()]
        story.goes_on()
        shown += [repr(story.hermes), str(story.hermes.warnings), caplog.text, *capfd.readouterr()]
    stored = "\n".join(sqlite3.connect(home / "notebook.db").iterdump())
    forms = {key, urllib.parse.quote(key), base64.b64encode(f"user:{key}".encode()).decode()}
    for text in (*shown, stored):
        assert not [form for form in forms if form in text]


def test_50_revoked_in_the_middle_of_the_work(server, waits, home, tmp_path):
    key = KEYS["as openai's"]
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        story.ask(says("Hello."))
        made = calls(("write_file", {"path": "made.txt", "content": "once\n"}))
        turn = story.ask(made, echoes(key)["revoked"], fails=True)
        assert "refused the API key" in turn.error and waits == []
        assert (story.work / "made.txt").exists()
        assert [each.role for each in turn.messages] == ["user", "assistant", "tool", "assistant"]
        story.goes_on()


def test_50_revoked_in_the_middle_of_a_word(server, waits, home, tmp_path):
    key = KEYS["as openai's"]
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        refused = {"error": {"type": "authentication_error", "message": f"{key} was revoked"}}
        turn = story.ask(Reply([event(chunk({"content": "Half "})), event(refused)]), fails=True)
        assert waits == [] and key not in turn.error
        assert turn.messages[-1].text == "Half "
        story.goes_on()


@pytest.mark.parametrize("key", ["sk-\u00e9\u202e", "sk-a\nX-Evil: 1", "sk-\0", "\U0001f511" * 8])
def test_50_a_key_that_no_header_can_carry(server, waits, home, tmp_path, key):
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        turn = story.ask(says("never"), fails=True)
        assert "API key" in turn.error and key not in turn.error and waits == []
        assert story.server.exchanges == []


@pytest.mark.kernel
@pytest.mark.slow
def test_50_in_a_cell(server, tmp_path):
    key = KEYS["hex"]
    (tmp_path / "home").mkdir()
    with served_kernel(server, tmp_path, HERMES_NB_API_KEY=key) as kernel:
        server.replies[:] = [echoes(key)["401"]]
        result = kernel.run("%hermes hello")
        assert result.status == "error"
        assert server.exchanges[-1].headers["authorization"] == f"Bearer {key}"
        (line,) = result.error["traceback"]
        assert "refused the API key" in line
        status = kernel.run("%hermes status").markdown + kernel.run("%hermes doctor").markdown
        assert key not in str(result.error) + result.text + result.markdown + status
        server.replies[:] = [says("Hello.")]
        assert "Hello." in kernel.run("%hermes hello").markdown
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()
