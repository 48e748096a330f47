"""The provider says that the prompt is too long: compressed, and sent once more; never for ever."""

from __future__ import annotations

import pytest
from hermes_nb.core.events import ContextCompressed

from tests.faults.cells import says
from tests.faults.provider import check_request, retried
from tests.loopback import Reply, event, failure

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
    """Give a story that has gone on for a while."""
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
    story.goes_on()


def test_48_in_the_stream(long_story):
    story = long_story
    size = len(story.server.exchanges[-1].body)
    Small(story.server, Reply([event(TOLD["openai"])]), most=size)
    turn = story.ask(says("It fits now."), prompt="and now?")
    assert turn.text == "It fits now."
    story.goes_on()
