"""Conversations to compress: random ones for properties, and folds that say what is valid."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

from hermes_nb.context.boundaries import is_ours
from hermes_nb.core.json_values import with_texts
from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.core.text import estimate_tokens
from hermes_nb.memory.sessions import SqliteStore
from hypothesis import strategies as st

from tests.conftest import every_call_has_one_result

WORDS = st.sampled_from(
    "the run of src/a.py failed with ValueError: x = 17 must never until ok résumé 数据 \n - ``` "
    "</transcript> [shortened] [Earlier s3-9 sk- key: {} {x}".split(" ")
)
SHORT = st.lists(WORDS, max_size=12).map(" ".join)
TEXT = st.one_of(
    SHORT,
    st.text(max_size=60),
    st.tuples(SHORT, st.integers(1, 60)).map(lambda pair: f"{pair[0]}\n" * pair[1]),
)
PICTURE = Image("aGk=")
ARGUMENTS = st.dictionaries(
    st.sampled_from(["command", "path", "content", "n", "deep"]),
    st.one_of(TEXT, st.integers(), st.lists(st.integers(), max_size=60), st.none()),
    max_size=3,
)


class Conversation(list):
    """A list of messages whose picture stays short, however large they are."""

    def __repr__(self):
        return "\n".join(f"{m.role} {m.text[:60]!r} {[c.name for c in m.calls]}" for m in self)


@st.composite
def exchanges(draw, number: int):
    """Draw what follows one request: an answer, calls with results, or something broken."""
    kind = draw(st.sampled_from(["user", "answer", "calls", "calls", "orphan", "lost"]))
    if kind == "user":
        images = [PICTURE] * draw(st.integers(0, 2))
        return [Message.user(draw(TEXT) or "go", images=images)]
    if kind == "answer":
        answer = Message.assistant(
            draw(TEXT), reasoning=draw(SHORT), interrupted=draw(st.booleans())
        )
        return [replace(answer, echo={"reasoning_details": [draw(SHORT)]})]
    if kind == "orphan":
        call = ToolCall(id=f"orphan{number}", name="ghost")
        return [Message.tool(call, draw(TEXT))]
    calls = []
    for place in range(draw(st.integers(1, 3))):
        arguments = draw(ARGUMENTS)
        calls.append(
            ToolCall(
                id=f"c{number}_{place}",
                name=draw(st.sampled_from(["terminal", "read_file", "write_file"])),
                arguments=arguments,
                text=json.dumps(arguments),
            )
        )
    results = [
        Message.tool(call, draw(TEXT), images=[PICTURE] * draw(st.integers(0, 1))) for call in calls
    ]
    if kind == "lost":
        results = results[: draw(st.integers(0, len(results) - 1))]
    if draw(st.booleans()):
        results.reverse()
    return [Message.assistant(draw(SHORT), calls=calls), *results]


@st.composite
def sessions(draw, max_size: int = 40):
    """Draw a conversation that begins with the user; one message of it may be giant."""
    messages = [Message.user(draw(SHORT) or "begin")]
    for number in range(draw(st.integers(1, max_size))):
        messages += draw(exchanges(number))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(messages) - 1))
        giant = Message.user(draw(SHORT) + "giant line\n" * 6_000).parts
        messages[place] = replace(messages[place], parts=giant)
    return Conversation(messages)


def stored(messages):
    """Return a store in memory with a session that holds the messages, and the session's id."""
    store = SqliteStore(":memory:")
    session = store.start()
    for message in messages:
        store.append(session, message)
    return store, session


def check_valid(messages) -> None:
    """Raise AssertionError unless the messages can be sent as they are."""
    assert every_call_has_one_result(messages)
    for message in messages:
        for call in message.calls:
            sent = with_texts(call.arguments, lambda text: text.replace("\0", "\ufffd"))
            assert json.loads(call.arguments_json()) == json.loads(json.dumps(sent))
    for before, after in itertools.pairwise(messages):
        if is_ours(before) or is_ours(after):
            assert not before.role == after.role != "tool"
            assert not (before.role == after.role == "assistant")


def last_words(messages):
    """Return the user's last message and the last answer, where there are any."""
    mine = [m for m in messages if m.role == "user" and not is_ours(m)]
    answers = [m for m in messages if m.role == "assistant" and m.text.strip() and not is_ours(m)]
    return [group[-1] for group in (mine, answers) if group]


def work(steps: int, *, lines: int = 60, fact_at: int = -1, fact: str = ""):
    """Return a long turn of test runs; `fact` stands in the middle of the output of one."""
    messages = [Message.user("Fix the failing tests. Never touch config.yaml.")]
    for step in range(steps):
        command = f"pytest tests/test_{step}.py -q"
        call = ToolCall(id=f"c{step}", name="terminal", arguments={"command": command})
        output = [f"tests/test_{step}.py::test_{n} PASSED [{n}%]" for n in range(lines)]
        if step == fact_at:
            output.insert(lines // 2, fact)
        output.append(f"[exit {step % 2}, 1.0 s]")
        messages += [Message.assistant(calls=[call]), Message.tool(call, "\n".join(output))]
    return messages


def talk(turns: int, words: int = 400, *, start: int = 0):
    """Return a conversation without tools, which pruning cannot shorten."""
    messages = []
    for turn in range(start, start + turns):
        messages.append(Message.user(f"Question {turn}: what about part {turn}?"))
        messages.append(Message.assistant(f"Answer {turn}: " + "word " * words))
    return messages


def compress(engine, messages, focus=""):
    """Compress as where the threshold is reached."""
    engine.should_compress(max(estimate_tokens(messages), engine.gauge.threshold))
    return asyncio.run(engine.compress(messages, focus))
