"""The second engine: nothing is summarised away, and ids stay good."""

from __future__ import annotations

import re

import pytest
from hermes_nb.context.archive import Archive, everything
from hermes_nb.context.boundaries import is_references, is_shortened
from hermes_nb.context.lossless import (
    HEADER,
    Lossless,
    Reference,
    condensed,
    positions_of,
    read_references,
    span_id,
)
from hermes_nb.context.policy import CompressionLimits
from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import estimate_tokens
from hermes_nb.core.tools import ToolOutput
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.tools.wrappers import context_tools
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.context.conversations import check_valid, compress, sessions, stored, talk, work
from tests.tools.support import run

WINDOW = 24_000
LIMITS = CompressionLimits(protect_last_n=4)


def expand(engine, name):
    """Return all parts of what an id stands for."""
    tool = context_tools(engine).get("context_expand")
    out, part = "", 1
    while True:
        text = run(tool, id=name, part=part).text
        body, more, _ = text.partition("\n[part ")
        out += body
        if not more:
            return out
        part += 1


@given(messages=sessions(12))
@example(
    messages=[
        Message.user("go"),
        Message.assistant(calls=[ToolCall(id="1", name="t")]),
        Message.tool(ToolCall(id="1", name="t"), "[shortened] the"),
        Message.assistant("so"),
    ]
)
@settings(max_examples=25)
def test_every_message_can_be_read_word_for_word(messages):
    store, session = stored(messages)
    engine = Lossless(store, session, window=8_000, limits=LIMITS)
    made = compress(engine, messages)
    tables = [m for m in made.messages if is_references(m)]
    shown = "".join(expand(engine, each.id) for each in read_references(tables))
    for message in made.messages:
        way_back = re.search(r"context_expand\('(s\d+)'\)", message.text)
        if message.role == "tool" and is_shortened(message.text) and way_back:
            shown += expand(engine, way_back[1])
    kept = "".join(map(everything, made.messages))
    cut = "left out" in kept
    for row in store.rows(session):
        text = row.message.text
        assert text in shown or text in kept or cut or row.message.call_id.startswith("orphan")


def test_references_survive_compression_after_compression():
    store, session = stored([])
    messages: list[Message] = []
    engine = Lossless(store, session, window=WINDOW, limits=LIMITS)
    given_out = set()
    for round_ in range(6):
        for message in talk(30, start=30 * round_):
            store.append(session, message)
            messages.append(message)
        made = compress(engine, messages)
        assert made.phase == "referenced"
        check_valid(made.messages)
        assert estimate_tokens(made.messages) <= engine.gauge.threshold / 2
        messages = list(made.messages)
        store.replace(session, messages)
        given_out |= {each.id for each in read_references(messages)}
        assert sum(map(is_references, messages)) == 1
    engine = Lossless(store, session, window=WINDOW, limits=LIMITS)  # as after a restart
    table = read_references(messages)
    everywhere = "".join(expand(engine, each.id) for each in table)
    for turn in range(2, 150):
        assert f"Question {turn}:" in everywhere
    for name in given_out:
        assert "word" in expand(engine, name), "an id that was given once stays good"
    assert positions_of(table[0].id)[0] <= 3


def test_a_summary_of_another_engine_is_carried_along():
    old = Message.assistant("[Earlier conversation, compressed]\nThe budget is 4711 euros.")
    messages = [*talk(1), old, *talk(60)]
    store, session = stored(messages)
    engine = Lossless(store, session, window=WINDOW, limits=LIMITS)
    made = compress(engine, messages)
    assert "4711" in made.summary
    again = compress(engine, [*made.messages, *talk(60, start=60)])
    assert "4711" in again.summary


def test_search_finds_what_left_the_view_and_passes_over_what_is_in_it():
    messages = work(60, fact_at=20, fact="the staging database listens on port 54329")
    store, session = stored(messages)
    engine = Lossless(store, session, window=WINDOW, limits=LIMITS)
    made = list(compress(engine, messages).messages)
    question = Message.user("What was the staging database port? zebra")
    store.append(session, question)
    live = Request(messages=(Message.system("s"), *made, question))
    search = context_tools(engine).get("context_search")
    asked = "staging database port"
    assert "What was the staging" in run(search, query=asked)
    engine.session_started(session, lambda: live)
    found = run(search, query=asked)
    assert "54329" in found
    assert "What was the staging" not in found
    assert expand(engine, re.search(r"^(s\d+) ", found)[1]).count("54329") == 1
    with pytest.raises(ToolError, match="fewer or other words"):
        run(search, query="zebra")
    engine.session_ended()
    assert "zebra" in run(search, query="zebra")


def test_spans_that_no_store_has_are_kept_in_memory():
    class Broken(SqliteStore):
        def rows(self, *args, **options):
            raise StoreError("gone")

        def search(self, *args, **options):
            return []

    messages = talk(60)
    engine = Lossless(Broken(":memory:"), "s", window=WINDOW, limits=LIMITS)
    made = compress(engine, messages)
    table = read_references(made.messages)
    assert {each.id[0] for each in table} == {"m"}
    text = "".join(expand(engine, each.id) for each in table)
    assert "Question 9:" in text
    search = context_tools(engine).get("context_search")
    assert "Question 9:" in run(search, query="question 9:")


def test_expand_gives_parts_and_pictures():
    call = ToolCall(id="a", name="plot")
    messages = [
        Message.user("x" * 45_000),
        Message.assistant(calls=[call]),
        Message.tool(call, "a plot", images=[Image("aGk=")]),
    ]
    engine = Lossless(*stored(messages), window=WINDOW)
    tools = context_tools(engine)
    tool = tools.get("context_expand")
    first = run(tool, id="s0")
    assert isinstance(first, ToolOutput)
    assert "part 1 of 3" in first.text
    assert expand(engine, "s0").count("x") == 45_000
    assert run(tool, id="s0-2", part=3).images == (Image("aGk="),)
    for wrong in ("s99", "nonsense", "s0-"):
        with pytest.raises(ToolError, match="nothing under"):
            run(tool, id=wrong)
    with pytest.raises(ToolError, match="1 to 3"):
        run(tool, id="s0", part=9)
    assert "part" in tool.check({"id": "s0", "part": "x"})
    assert tool.check({}) != ""
    assert {each.toolset for each in tools} == {"context"}


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 2_000))
def test_a_condensed_table_covers_the_same_messages(sizes, tokens):
    table, start = [], 0
    for size in sizes:
        name = span_id(start, start + size - 1)
        table.append(Reference(id=name, messages=size, tokens=9, gist="user “x”; terminal x3"))
        start += size
    out = condensed(table, tokens)
    assert sum(each.messages for each in out) == sum(sizes)
    spans = [positions_of(each.id) for each in out]
    covered = [position for first, last in spans for position in range(first, last + 1)]
    assert covered == list(range(sum(sizes)))
    length = len(HEADER) + sum(len(each.line()) + 1 for each in out)
    assert len(out) <= 1 or length <= tokens * 3.5 + 1
    text = "\n".join([HEADER, *(each.line() for each in out)])
    assert read_references([Message.user(text)]) == out


def test_positions_follow_the_order_of_equal_messages():
    messages = [Message.user("go on"), Message.assistant("ok")] * 5
    store, session = stored(messages)
    archive = Archive(store, session)
    located = archive.locate(messages)
    assert len(set(located.values())) <= 10
    fresh = [Message.user("go on") for _ in range(5)]
    assert [archive.locate(fresh)[id(m)] for m in fresh] == [0, 2, 4, 6, 8]
