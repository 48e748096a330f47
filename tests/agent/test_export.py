"""Exports: readable, valid, complete, and without secrets or live markup."""

from __future__ import annotations

import json

import nbformat
import pytest
from hermes_nb.agent.session.export import FORMATS, export
from hermes_nb.core.messages import Message, Text, ToolCall
from hermes_nb.core.protocols import StoredMessage, StoredSession
from hypothesis import given
from hypothesis import strategies as st

SESSION = StoredSession(
    id="20261122-000000-abcdef", title="Penguins *and* <b>", model="m", started=1_790_000_000
)
CALL = ToolCall(id="1", name="terminal", arguments={"command": "ls ```"})
KEY = "sk-proj-" + "a1B2" * 12


def rows(*messages):
    return [
        StoredMessage(session_id=SESSION.id, position=n, message=message, at=1_790_000_000 + n)
        for n, message in enumerate(messages)
    ]


STORY = rows(
    Message(role="user", parts=(Text(f"How many? {KEY}"), Text("[Notebook context]\nx"))),
    Message.assistant("Let me see.", calls=[CALL]),
    Message.tool(CALL, f"a.csv\n</details><script>alert(1)</script> {KEY}"),
    Message.assistant("**344** <img src=x>"),
)


@pytest.mark.parametrize("form", FORMATS)
def test_everything_said_is_there_without_secrets_and_cannot_run(form):
    text = export(SESSION, STORY, form)
    assert KEY not in text
    assert all(said in text for said in ("How many?", "Let me see.", "a.csv", "344", "terminal"))
    # What was added for the model is no part of the prompt.
    assert ("[Notebook context]" in text) is (form == "jsonl")
    if form == "markdown":
        assert "<script>" not in text.replace(text[text.index("```") :], "")
        assert "<img" not in text and "<b>" not in text


def test_a_notebook_is_valid_and_has_a_cell_a_prompt():
    book = nbformat.reads(export(SESSION, STORY, "notebook"), as_version=4)
    nbformat.validate(book)
    assert [cell.cell_type for cell in book.cells] == ["markdown", "code"]
    assert book.cells[1].source.startswith("%%hermes\nHow many?")
    assert "344" in book.cells[1].outputs[0].data["text/markdown"]


def test_json_lines_hold_the_messages_themselves():
    first, *rest = (json.loads(line) for line in export(SESSION, STORY, "jsonl").splitlines())
    assert first["session"] == SESSION.id
    plain = {key: rest[3][key] for key in rest[3] if key not in ("position", "at", "state")}
    assert Message.from_dict(plain) == STORY[3].message


@given(st.lists(st.text(max_size=80), max_size=6), st.sampled_from(FORMATS))
def test_any_text_exports(texts, form):
    said = [
        Message.user(text) if n % 2 == 0 else Message.assistant(text)
        for n, text in enumerate(texts)
    ]
    text = export(SESSION, rows(*said), form)
    text.encode("utf-8", "surrogatepass")
    if form == "notebook":
        nbformat.validate(nbformat.reads(text, as_version=4))
