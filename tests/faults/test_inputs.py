"""Any bytes and texts at the edges: streams, tool calls, skills, memory, notebooks, search."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hermes_nb.core.errors import ModelError, ToolError
from hermes_nb.core.messages import Message
from hermes_nb.memory.entries import parse
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.call_reader import CallReader
from hermes_nb.models.chat.sse import StreamDecoder
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.safety.policy import assess
from hermes_nb.skills.document import SkillError, read_document
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cpu import growth

quick = settings(settings.get_profile("quick"), max_examples=40)
LINES = st.lists(
    st.sampled_from(
        [b"data: ", b"data: {}", b"\n", b"\r\n", b"\r", b": x", b"[DONE]", b"{", b"]", b"\xff"]
    )
    | st.binary(max_size=12),
    max_size=30,
)


@quick
@given(LINES)
def test_any_stream_gives_values_or_a_model_error(pieces):
    decoder = StreamDecoder()
    try:
        values = [value for piece in pieces for value in decoder.feed(piece)] + decoder.finish()
    except ModelError:
        return
    json.dumps(values)


@quick
@given(st.binary(max_size=300), st.booleans())
def test_any_file_is_a_notebook_or_told_apart(tmp_path_factory, data, begun):
    path = tmp_path_factory.mktemp("any") / "n.ipynb"
    path.write_bytes(b'{"nbformat": 4, "nbformat_minor": 5, "cells": [' * begun + data)
    _read(path)


@quick
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["cells", "source", "id", "outputs", "cell_type", "metadata", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_cells_are_read_or_told_apart(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("any") / "n.ipynb"
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cells]}
    path.write_text(json.dumps(book), encoding="utf-8")
    _read(path)


def _read(path: Path) -> None:
    with suppress(ToolError):
        asyncio.run(FileDocument(path).cells(outputs=True))


@quick
@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(list('"*:^()-+ ANDORNEAR{}\0')), max_size=20).map("".join)
)
def test_any_query_is_a_search(query):
    store = SqliteStore(":memory:")
    store.start(session_id="a")
    store.append("a", Message.user(f"walrus {query}"))
    store.search(query)
    assert store.search("walrus")
    store.close()


def decoded(text: str) -> None:
    """Decode a stream, in pieces as a socket gives them."""
    decoder = StreamDecoder()
    data = text.encode()
    for start in range(0, len(data), 4_096):
        decoder.feed(data[start : start + 4_096])
    decoder.finish()


def called(text: str) -> None:
    """Look for tool calls in a text."""
    reader = CallReader(frozenset({"f"}))
    for start in range(0, len(text), 64):
        reader.feed(text[start : start + 64])
    reader.finish()


def as_skill(text: str) -> None:
    """Read a text as a skill."""
    for content in (text, f"---\nname: a\ndescription: b\n{text}"):
        try:
            read_document(content, folder="a")
        except SkillError:
            continue


def searched(text: str) -> None:
    """Search for a text."""
    store = SqliteStore(":memory:")
    store.start(session_id="a")
    store.append("a", Message.user(f"walrus, café, 2026-11-22: {text[:2_000]}"))
    store.search(text)
    store.close()


READERS = {
    "stream": (decoded, ["data: {}\n\n", "data: x\n", "data:\r", '{"a":', "\n"]),
    "tool calls": (called, ["<tool_call>", "```json\n{", '{"name": "f", ', "<function=f>", "[f("]),
    "skill": (as_skill, ["a: [", "- ", "a: &a\n", "---\n", "x: |\n  y\n", "{a: ", "'", "*a "]),
    "memory": (lambda text: parse(text.encode()), ["§\n", "# a\n", "- b\n", "```\n", "\r"]),
    "search": (searched, ['"a ', "(a ", "a OR ", "NEAR(", "a* ", "café-", "2026-11-22 "]),
    "command": (assess, ["a|", "$(", "`", "cat 'x' ", "{a,b}", "find . -exec ", "<<E\n", "\\"]),
}


@pytest.mark.parametrize(
    ("reader", "piece"),
    [
        pytest.param(read, p, id=f"{n}-{i}")
        for n, (read, ps) in READERS.items()
        for i, p in enumerate(ps)
    ],
)
def test_time_grows_no_faster_than_the_input(reader, piece):
    """Eight times the input may cost sixteen times as much, above what a clock can tell."""
    texts = (piece * (size // len(piece)) for size in (12_500, 100_000))
    assert growth(reader, *texts, least=0.03) < 16
