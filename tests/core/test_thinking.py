"""`<think>` in an answer is reasoning, however it arrives: never answer, never sent again."""

from __future__ import annotations

import pytest
from hermes_nb.core.events import ReasoningDelta, TextDelta
from hermes_nb.core.messages import Message
from hermes_nb.core.thinking import Thinking, split_thinking
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.chat.stream import Assembly
from hermes_nb.models.text_calls import TextCalls
from hermes_nb.notebook.display.transcript import Transcript
from hypothesis import example, given
from hypothesis import strategies as st

from tests.faults import provider
from tests.loopback import Loopback, chunk, stream, text_chunks, tool_chunks

CALL = '<tool_call>{"name": "list_files", "arguments": {}}</tool_call>'
WRITES = (
    '<tool_call>{"name": "write_file", "arguments": {"content": "<think>a</think>"}}</tool_call>'
)
FENCED = "Like this:\n```html\n<think>a</think>\n```\nas said."
SPLIT = {
    "a pair": ("<think>\nplan\n</think>\n\nFour.", "Four.", "plan"),
    "blanks before": ("\n <think>plan</think>Four.", "Four.", "plan"),
    "an empty one": ("<think>\n\n</think>\n\nFour.", "Four.", ""),
    "two": ("<think>a</think>\n<think>b</think>\nFour.", "Four.", "ab"),
    "within the text": ("First. <think>plan</think>Four.", "First. Four.", "plan"),
    "never closed": ("<think>plan and", "", "plan and"),
    "never closed within the text": ("First. <think>plan", "First. <think>plan", ""),
    "a lone closer": ("plan\n</think>\n\nFour.", "Four.", "plan"),
    "a lone closer first": ("</think>Four.", "Four.", ""),
    "a closer too many": ("<think>a</think>b</think>c", "bc", "a"),
    "calls in it": (f"<think>{CALL}</think>Four.", "Four.", CALL),
    "in a fence": (FENCED, FENCED, ""),
    "in a fence behind reasoning": (f"<think>a</think>{FENCED}", FENCED, "a"),
    "in backticks": ("The `</think>` and `<think>` tags", "The `</think>` and `<think>` tags", ""),
    "a fence first": ("```\n<think>\n```", "```\n<think>\n```", ""),
    "indented": ("So:\n\n    <think>a</think>", "So:\n\n    <think>a</think>", ""),
    "in a call": (WRITES, WRITES, ""),
    "blanks alone": (" \n", " \n", ""),
    "no tag": (" a < b <thin", " a < b <thin", ""),
}
pieces = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "`", "```\n", "\n", "    ", " ", "<", "a", "</thin", "é"]
)


@pytest.mark.parametrize(("text", "answer", "reasoning"), SPLIT.values(), ids=SPLIT)
def test_what_is_reasoning(text, answer, reasoning):
    assert split_thinking(text) == (answer, reasoning)


@given(st.lists(pieces, max_size=24).map("".join), st.data())
@example("```\n<think>\n```", None)
def test_any_text_cut_anywhere(text, data):
    """Cuts make no difference, nothing but tags and blanks is lost, and what is split stays so."""
    answer, reasoning = split_thinking(text)
    thinking, said, thought = Thinking(), "", ""
    at = 0
    found = []
    while at < len(text):
        size = data.draw(st.integers(1, 6)) if data else 1
        found += thinking.feed(text[at : at + size])
        at += size
    for kind, piece in [*found, *thinking.finish()]:
        if kind == "retract":
            said, thought = "", thought + said
        else:
            said, thought = said + piece * (kind == "text"), thought + piece * (kind != "text")
    assert (said, thought.strip()) == (answer, reasoning)
    if "`" not in text and "    " not in text:
        assert split_thinking(answer)[0] == answer
    for tag in ("<think>", "</think>"):
        text, said, thought = (each.replace(tag, "") for each in (text, said, thought))
    left = sorted(text.replace(" ", "").replace("\n", ""))
    assert sorted((said + thought).replace(" ", "").replace("\n", "")) == left


def whole(text):
    return stream([{"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}])


@pytest.mark.parametrize("name", ["qwen3-8b", "phi-4-reasoning"], ids=["structured", "text"])
@pytest.mark.parametrize("said", [lambda t: stream(text_chunks(t, size=3)), whole])
@pytest.mark.parametrize("opener", ["<think>", ""])
def test_a_turn(tmp_path, home, monkeypatch, name, said, opener):
    calls = stream(
        [chunk({"content": f"{opener}zebra A</think>"}), *tool_chunks(("list_files", {}))]
    )
    if name.startswith("phi"):
        calls = said(f"{opener}zebra A</think>\n{CALL}")
    monkeypatch.setattr(provider, "MODEL", name)
    with Loopback() as server, provider.told_by(server, home, tmp_path / "work") as story:
        turn = story.ask(calls, said(f"{opener}zebra B</think>\n\nNone."))
        assert turn.text == "None."
        story.goes_on()
        for exchange in server.exchanges:
            assert b"zebra" not in exchange.body and b"think>" not in exchange.body
    thoughts = [m.reasoning for m in turn.messages if m.role == "assistant"]
    assert thoughts == ["zebra A", "zebra B"]
    transcript = Transcript(model=name)
    for event in turn.events:
        transcript(event)
    assert transcript.finished().startswith("None.") and "zebra B" in transcript.finished()


def test_what_was_shown_before_a_lone_closer_is_taken_back():
    assembly = Assembly(TextCalls().reader())
    shown = [
        each
        for piece in ("pl", "an</th", "ink>Four.")
        for each in assembly.feed(chunk({"content": piece}))
    ]
    assert shown == [
        TextDelta("pl"),
        TextDelta("an"),
        ReasoningDelta("plan", True),
        TextDelta("Four."),
    ]
    transcript = Transcript()
    for each in shown:
        transcript(each)
    assert transcript.answer == "Four."


def test_sessions_that_hold_it_are_read_so(tmp_path):
    store = SqliteStore(tmp_path / "n.db")
    session = store.start()
    store.append(session, Message.user("<think> is a tag, </think> too"))
    store.append(session, Message.assistant("<think>plan</think>\n\nFour."))
    user, answer = store.messages(session)
    store.close()
    assert user.text == "<think> is a tag, </think> too"
    assert (answer.text, answer.reasoning) == ("Four.", "plan")
