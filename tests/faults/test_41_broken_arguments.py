"""Arguments that are no JSON: read where there is one way to read them, else never executed."""

from __future__ import annotations

import pytest

from tests.faults.cells import calls, says
from tests.loopback import chunk, stream, tool_chunks

RIGHT = '{"path": "made.txt", "content": "once"}'
ONE_WAY = {
    "as it should be": RIGHT,
    "single quotes": "{'path': 'made.txt', 'content': 'once'}",
    "a comma too many": '{"path": "made.txt", "content": "once",}',
    "in a fence": f"```json\n{RIGHT}\n```",
    "encoded twice": '"{\\"path\\": \\"made.txt\\", \\"content\\": \\"once\\"}"',
    "a bracket too many": RIGHT + "}",
    "an empty start": "{}" + RIGHT,
    "bare keys": '{path: "made.txt", content: "once"}',
}
NO_WAY = {
    "cut in a string": '{"path": "made.txt", "content": "on',
    "cut in a key": '{"path": "made.txt", "conte',
    "cut behind a comma": '{"path": "made.txt",',
    "two objects": RIGHT + RIGHT.replace("made", "other"),
    "quotes in a string": '{"path": "made.txt", "content": "say "once" again"}',
    "a list": '["made.txt", "once"]',
    "a string": '"made.txt"',
    "a number": "7",
    "words": "path is made.txt and content is once",
    "not a number": '{"path": "made.txt", "content": NaN}',
    "nested deeply": '{"path": "made.txt", "content": ' + "[" * 30_000 + "]" * 30_000 + "}",
    "an end that a repair would lose": '{"path": "made.txt", "content": "once\\n",}',
    "half a megabyte of brackets": "{" * 500_000,
    "another key by a backslash": '{"path": "made.txt", "content": "\\x41"}',
}


@pytest.mark.parametrize("text", ONE_WAY.values(), ids=ONE_WAY)
def test_41_one_way_to_read_it(story, text):
    turn = story.ask(calls(("write_file", text)), says("Made."))
    assert turn.text == "Made."
    assert (story.work / "made.txt").read_text(encoding="utf-8") == "once"
    assert [each.name for each in story.work.iterdir()] == ["made.txt"]
    story.goes_on()


@pytest.mark.parametrize("text", NO_WAY.values(), ids=NO_WAY)
def test_41_no_way_to_read_it(story, text):
    turn = story.ask(
        calls(("write_file", text), size=9_999), calls(("write_file", RIGHT)), says("Now.")
    )
    assert turn.text == "Now."
    bad, good = story.results
    assert "write_file was not run" in bad and len(bad) < 1_000
    assert "made.txt" in good
    assert (story.work / "made.txt").read_text(encoding="utf-8") == "once"
    assert [each.name for each in story.work.iterdir()] == ["made.txt"]
    story.goes_on()


@pytest.mark.parametrize("finish", ["length", "max_tokens", None])
@pytest.mark.parametrize("text", ['{"path": "made.txt", "conte', '{"path": "made.txt"}', "{", ""])
def test_41_cut_off_by_the_limit(story, text, finish):
    """What was cut off is not run, even where what has come could be read."""
    pieces = tool_chunks(("write_file", text))[:-1]
    reply = stream([*pieces, *([chunk(finish=finish)] if finish else [])], done=False)
    turn = story.ask(reply, says("Sorry."))
    assert turn.text == "Sorry."
    assert "was not run" in story.results[0]
    assert not list(story.work.iterdir())
    story.goes_on()


def test_41_whole_calls_before_the_cut_are_run(story):
    whole = tool_chunks(("write_file", RIGHT))[:-1]
    cut = [
        each | {"choices": [each["choices"][0] | {"delta": _second(each)}]}
        for each in tool_chunks(("write_file", '{"path": "other.txt", "content": "tw'))[:-1]
    ]
    turn = story.ask(stream([*whole, *cut, chunk(finish="length")]), says("One of two."))
    assert turn.text == "One of two."
    assert len(story.results) == 2
    assert "was not run" in story.results[1]
    assert [each.name for each in story.work.iterdir()] == ["made.txt"]


def _second(each):
    (call,) = each["choices"][0]["delta"]["tool_calls"]
    return {"tool_calls": [call | {"index": 1} | ({"id": "call_y"} if "id" in call else {})]}


@pytest.mark.kernel
def test_41_no_half_parsed_code_runs_in_the_kernel(cells):
    cells.run("ran = []")
    cut = stream([*tool_chunks(("run_python", '{"code": "ran.append(1)"'))[:-1]], done=False)
    result = cells.ask(cut, says("Cut."), options="--approve all")
    assert result.status == "ok"
    assert "was not run" in cells.results[0]
    assert cells.printed("print(ran)") == "[]"
