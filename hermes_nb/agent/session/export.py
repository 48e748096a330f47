"""Exports a session as Markdown, a notebook, or JSON lines.

Secrets are redacted throughout. Markdown from models and tools is cleaned as in a cell, so that an
exported page cannot run code.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json, Message, ToolCall
from hermes_nb.core.protocols import StoredMessage, StoredSession
from hermes_nb.core.text import head_tail
from hermes_nb.memory.recall import spoken
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hermes_nb.safety.redact import redact

Format = Literal["markdown", "notebook", "jsonl"]
FORMATS = get_args(Format)
SUFFIXES: dict[Format, str] = {"markdown": ".md", "notebook": ".ipynb", "jsonl": ".jsonl"}
SHOWN = 4_000
"""Maximum length of each argument and result, in characters; JSON lines contain them in full."""


def export(session: StoredSession, rows: Sequence[StoredMessage], form: Format) -> str:
    """Return a session as the text of a file; `rows` are its messages, oldest first."""
    writers: dict[Format, Callable[[StoredSession, Sequence[StoredMessage]], str]] = {
        "markdown": _markdown,
        "notebook": _notebook,
        "jsonl": _jsonl,
    }
    return writers[form](session, rows)


def _markdown(session: StoredSession, rows: Sequence[StoredMessage]) -> str:
    blocks = [_heading(session)]
    results = _results(rows)
    for row in rows:
        message = row.message
        if message.role == "user":
            blocks += ["---", f"**You** · {_local_time(row.at)}", _quoted(spoken(message))]
        elif message.role == "assistant":
            blocks += [_details(call, results.get(call.id)) for call in message.calls]
            if message.text.strip():
                blocks.append(_answer(message))
    return "\n\n".join(blocks) + "\n"


def _notebook(session: StoredSession, rows: Sequence[StoredMessage]) -> str:
    """Return an nbformat 4.5 notebook: each prompt is a `%%hermes` cell with its answer below."""
    cells: list[dict[str, Json]] = [_cell("head", "markdown", _heading(session))]
    results = _results(rows)
    said: list[str] = []

    def finish() -> None:
        if said and cells[-1]["cell_type"] == "code":
            text = "\n\n".join(said)
            data = {"text/markdown": text, "text/plain": text}
            output = {"output_type": "display_data", "data": data, "metadata": {}}
            cells[-1]["outputs"] = [output]
        said.clear()

    for row in rows:
        message = row.message
        if message.role == "user":
            finish()
            source = f"%%hermes\n{redact(spoken(message))}"
            cells.append(_cell(f"turn-{row.position}", "code", source))
        elif message.role == "assistant":
            said += [_details(call, results.get(call.id)) for call in message.calls]
            if message.text.strip():
                said.append(_answer(message))
    finish()
    book = {"cells": cells, "metadata": _kernel(), "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=True) + "\n"


def _jsonl(session: StoredSession, rows: Sequence[StoredMessage]) -> str:
    first = {
        "session": session.id,
        "title": session.title,
        "source": session.source,
        "notebook": session.notebook,
        "model": session.model,
        "system_prompt": session.system_prompt,
        "started": session.started,
    }
    lines = [first]
    lines += [
        {"position": row.position, "at": row.at, "state": row.state, **row.message.to_dict()}
        for row in rows
    ]
    return "".join(json.dumps(_redacted(line), default=str) + "\n" for line in lines)


def _redacted(value: object) -> Json:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in value]
    return value


def _heading(session: StoredSession) -> str:
    facts = [f"session {code_span(session.id)}", _local_time(session.started)]
    if session.model:
        facts.append(f"model {code_span(session.model)}")
    if session.notebook:
        facts.append(f"notebook {code_span(session.notebook)}")
    return f"# {escape(redact(session.title) or 'A conversation with Hermes')}\n\n" + " · ".join(
        facts
    )


def _quoted(text: str) -> str:
    lines = safe_markdown(redact(text)).split("\n")
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _answer(message: Message) -> str:
    cut = "\n\n*(interrupted)*" if message.interrupted else ""
    return safe_markdown(redact(message.text)) + cut


def _details(call: ToolCall, result: Message | None) -> str:
    """Return a call and its result as a collapsed block."""
    arguments = json.dumps(_redacted(dict(call.arguments)), indent=1, ensure_ascii=False)
    text = "no result" if result is None else visible(redact(result.text), lines=True)
    mark = "✗" if result is None or result.failed else "✓"
    body = [
        f"<details><summary>{mark} {escape(visible(call.name))}</summary>",
        code_block(visible(head_tail(arguments, SHOWN), lines=True), "json"),
        code_block(head_tail(text, SHOWN)),
        "</details>",
    ]
    return "\n\n".join(body)


def _results(rows: Sequence[StoredMessage]) -> dict[str, Message]:
    return {row.message.call_id: row.message for row in rows if row.message.role == "tool"}


def _local_time(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    return moment.isoformat(sep=" ", timespec="minutes")


def _cell(name: str, kind: Literal["markdown", "code"], source: str) -> dict[str, Json]:
    cell: dict[str, Json] = {"cell_type": kind, "id": name, "metadata": {}, "source": source}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _kernel() -> dict[str, Json]:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"kernelspec": kernel, "language_info": {"name": "python"}}
