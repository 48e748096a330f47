"""Ten megabytes where a sentence was expected: cut at a limit, wherever it is kept."""

from __future__ import annotations

import resource

import pytest
from hermes_nb.models.chat.stream import LIMIT

from tests.faults.cells import says
from tests.loopback import DONE, Reply, chunk, event, stream, tool_chunks

HUGE = 10_000_000


def of(delta, *, pieces=1):
    """Return a reply with that delta, so many times."""
    return Reply([event(chunk(delta))] * pieces + [event(chunk(finish="stop")), DONE])


def most_memory():
    """Return the most megabytes this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 100])
def test_47_text(story, pieces):
    turn = story.ask(of({"content": "word " * (HUGE // 5 // pieces)}, pieces=pieces))
    assert 0 < len(turn.text) <= LIMIT
    (reply,) = [message for message in turn.messages if message.role == "assistant"]
    assert len(reply.text) <= LIMIT


def test_47_thought(story):
    turn = story.ask(of({"reasoning_content": "hm " * (HUGE // 3)}), says("Enough."))
    assert turn.text == "Enough."
    thought = max(len(message.reasoning) for message in turn.messages)
    assert thought <= LIMIT
    story.goes_on()


@pytest.mark.slow
def test_47_arguments(story):
    huge = {"path": "made.txt", "content": "x" * HUGE}
    turn = story.ask(stream(tool_chunks(("write_file", huge), size=HUGE * 2)), says("Too much."))
    assert turn.text == "Too much."
    assert not list(story.work.iterdir())
    assert len(story.server.exchanges[-1].body) < 500_000
    story.goes_on()


def test_47_a_name(story):
    call = stream(tool_chunks(("x" * 1_000_000, {})))
    turn = story.ask(call, says("No such thing."))
    assert turn.text == "No such thing."
    assert len(story.server.exchanges[-1].body) < 500_000
    story.goes_on()


def test_47_ids(story):
    piece = {
        "function": {"name": "list_files", "arguments": "{}"},
        "id": "i" * 1_000_000,
        "index": 0,
    }
    turn = story.ask(of({"tool_calls": [piece]}), says("Listed."))
    assert turn.text == "Listed."
    assert len(story.server.exchanges[-1].body) < 500_000
    story.goes_on()


def test_47_many_calls(story):
    """So many calls cost the model an answer each, and the user no lifetime."""
    calls = tool_chunks(*[("list_files", {})] * 500, size=99)
    turn = story.ask(stream(calls), says("Listed."))
    assert turn.text == "Listed."


def test_47_a_line_without_end(story):
    turn = story.ask(Reply([b"data: " + b"x" * 1_000_000] * 40), fails=True)
    assert "MB" in turn.error
    assert most_memory() < 2_000
    story.goes_on()


@pytest.mark.kernel
@pytest.mark.slow
def test_47_a_cell_keeps_less(cells):
    result = cells.ask(of({"content": "word " * (HUGE // 5)}), allow_stdin=True, timeout=120)
    assert result.status == "ok"
    assert 1_000 < len(result.markdown) < 100_000
    assert len(str(result.outputs)) < 300_000
    cells.run("%hermes new")
