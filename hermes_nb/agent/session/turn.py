"""A turn as a value, and conversations for others: exported, or as user and agent led them.

An export is Markdown, a notebook, or JSON lines. Every text is redacted on its way out; what a
model or a tool said is cleaned as it is in a cell, so that an exported page cannot run anything.

`said` leaves out all text that neither user nor agent wrote. What writes memory and skills beside a
turn sees that and no more, so that an order planted in a file, an output or a page never reaches
it. It is also a fraction of the tokens. `flush` is the last look before messages go: one request in
which only the memory tool can run.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal, Self, get_args

from hermes_nb.context.boundaries import is_ours, is_shortened
from hermes_nb.context.summary import entries
from hermes_nb.core.calls import execute
from hermes_nb.core.errors import HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    ChildFinished,
    EndReason,
    Event,
    MessageAdded,
    TurnEnded,
    UsageReported,
)
from hermes_nb.core.messages import Image, Json, Message, Part, Reply, Role, Text, ToolCall, Usage
from hermes_nb.core.protocols import (
    ChatModel,
    Hit,
    Request,
    SessionStore,
    StoredMessage,
    StoredSession,
)
from hermes_nb.core.text import head_tail, one_line, used
from hermes_nb.core.tools import Place, ToolContext, Toolset
from hermes_nb.memory.recall import spoken
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hermes_nb.safety.redact import redact

MARKS: dict[EndReason, str] = {"answered": "✓", "interrupted": "■", "failed": "✗", "budget": "◔"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a turn came to. `text` is the last thing the assistant said.

    `error` says why it failed, `note` which budget ended it; `usage` has that of its children.
    In a notebook it shows itself as Markdown, with a line on what it used.
    """

    text: str
    reason: EndReason
    error: str = ""
    note: str = ""
    model: str = ""
    events: tuple[Event, ...] = field(default=(), repr=False)
    messages: tuple[Message, ...] = field(default=(), repr=False)
    usage: Usage = field(default_factory=Usage)

    @property
    def cost(self) -> float | None:
        """The price of the turn in US dollars, None when it is not known."""
        return self.usage.cost

    def raise_for_failure(self) -> Self:
        """Return the turn itself; raise `HermesError` if it failed."""
        if self.reason == "failed":
            raise HermesError(self.error)
        return self

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    @property
    def status(self) -> str:
        """How it ended and what it used, on one line of plain text."""
        why = self.error or self.note or {"interrupted": "stopped"}.get(self.reason, "")
        told = (MARKS[self.reason], why, self.model, *used(self.usage))
        return " · ".join(redact(part) for part in told if part)

    def _repr_markdown_(self) -> str:
        body = safe_markdown(redact(self.text))
        return "\n\n".join(filter(str.strip, (body, f"<sub>{escape(self.status)}</sub>")))


def turn_of(events: Sequence[Event]) -> Turn:
    """Return the turn that these events, its last one included, tell of."""
    ending = events[-1]
    assert isinstance(ending, TurnEnded)  # noqa: S101 - the loop's first promise
    messages = tuple(event.message for event in events if isinstance(event, MessageAdded))
    spoken = [message.text for message in messages if message.role == "assistant" and message.text]
    reports = [event for event in events if isinstance(event, UsageReported)]
    children = [event.usage for event in events if isinstance(event, ChildFinished)]
    return Turn(
        text=spoken[-1] if spoken else "",
        reason=ending.reason,
        error=ending.error,
        note=ending.note,
        model=next((each.model for each in reversed(reports) if not each.purpose), ""),
        events=tuple(events),
        messages=messages,
        usage=sum((*(each.usage for each in reports), *children), Usage()),
    )


Format = Literal["markdown", "notebook", "jsonl"]
FORMATS = get_args(Format)
SUFFIXES: dict[Format, str] = {"markdown": ".md", "notebook": ".ipynb", "jsonl": ".jsonl"}
SHOWN = 4_000
"""Characters of each result on a page; JSON lines have all of it."""


def export(session: StoredSession, rows: Sequence[StoredMessage], form: Format) -> str:
    """Return a session as a file's text; `rows` are its messages, in the order they were said."""
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
            blocks += ["---", f"**You** · {_when(row.at)}", _quoted(spoken(message))]
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
    facts = [f"session {code_span(session.id)}", _when(session.started)]
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
    """Return a call and what it gave, folded."""
    arguments = json.dumps(_redacted(dict(call.arguments)), indent=1, ensure_ascii=False)
    told = "no result" if result is None else visible(redact(result.text), lines=True)
    mark = "✗" if result is None or result.failed else "✓"
    body = [
        f"<details><summary>{mark} {escape(visible(call.name))}</summary>",
        code_block(visible(head_tail(arguments, SHOWN), lines=True), "json"),
        code_block(head_tail(told, SHOWN)),
        "</details>",
    ]
    return "\n\n".join(body)


def _results(rows: Sequence[StoredMessage]) -> dict[str, Message]:
    return {row.message.call_id: row.message for row in rows if row.message.role == "tool"}


def _when(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    return moment.isoformat(sep=" ", timespec="minutes")


def _cell(name: str, kind: Literal["markdown", "code"], source: str) -> dict[str, Json]:
    cell: dict[str, Json] = {"cell_type": kind, "id": name, "metadata": {}, "source": source}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _kernel() -> dict[str, Json]:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"kernelspec": kernel, "language_info": {"name": "python"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Where the conversation, or the output of a tool, has what was searched for.

    `text` is one line of it, without secrets; `marks` are where words of the query begin and end.
    """

    hit: Hit
    text: str
    marks: tuple[tuple[int, int], ...]


def quotes(store: SessionStore, query: str, *, limit: int) -> list[Quote]:
    """Return what was said about something, best first, a session's quotes side by side.

    Where that is less than the limit, outputs of tools follow. Summaries, what pruning left of a
    result, what a search quoted of other sessions, and matches only in what was added for the model
    are left out.
    """
    from hermes_nb.memory.search import finding

    asked, number = finding.wanted(query), 0
    found: dict[str, list[Quote]] = {}
    spoken_by: tuple[tuple[Role, ...], ...] = (("user", "assistant"), ("tool",))
    for roles in spoken_by:
        hits = store.search(query, limit=2 * limit, roles=roles) if number < limit else []
        for hit in hits:
            for row in store.rows(hit.session_id, first=hit.position, last=hit.position):
                if number < limit and (quote := _quote(hit, row.message, asked)):
                    found.setdefault(hit.session_id, []).append(quote)
                    number += 1
    return [quote for each in found.values() for quote in each]


def _quote(hit: Hit, message: Message, asked: Collection[str]) -> Quote | None:
    """Return where a message that was found has it, None where it is nothing to show."""
    from hermes_nb.memory.search import finding

    repeated = message.name == "session_search" or is_shortened(message.text)
    hidden = is_ours(message) or (message.role == "tool" and repeated)
    said = "" if hidden else redact(spoken(message))
    terms = finding.nearest(message.text, asked)
    added = finding.matches(message.text, terms) and not finding.matches(said, terms)
    if not said.strip() or added:
        return None
    text = visible(finding.snippet(said, terms))
    return Quote(hit=hit, text=text, marks=tuple(finding.matches(text, terms)))


ARGUMENT = 100
"""Characters of an argument of a call that is kept: a path or a command, no content."""
_GIST = 60


def said(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with a note in the place of every text that others wrote.

    Calls keep their short arguments; results say whether the call succeeded. Pictures and what a
    provider wants back with a message are left out.
    """
    calls = {call.id: call for message in messages for call in message.calls}
    return [
        replace(
            message,
            parts=tuple(_part(part, message, calls.get(message.call_id)) for part in message.parts),
            calls=tuple(map(_call, message.calls)),
            reasoning="",
            echo={},
        )
        for message in messages
    ]


def _part(part: Part, message: Message, call: ToolCall | None) -> Part:
    if isinstance(part, Image):
        return Text("[a picture]")
    if part.origin in ("user", "ours"):
        return part
    what = {"tool": message.name, "user": "what came with it", "assistant": "a summary"}
    gist = _gist(call) if call else ""
    failed = "failed: " if message.failed else ""
    name = " ".join(filter(None, (what.get(message.role, message.role), gist)))
    return Text(f"[{failed}text of {name}, {len(part.text):,} characters]")


def _gist(call: ToolCall) -> str:
    given = (_short(value) for value in call.arguments.values() if isinstance(value, str))
    return one_line(" ".join(map(str, given)), _GIST)


def _call(call: ToolCall) -> ToolCall:
    return replace(call, arguments={k: _short(v) for k, v in call.arguments.items()}, text="")


def _short(value: object) -> object:
    if isinstance(value, bool | int | float | None):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= ARGUMENT else f"[{len(text):,} characters]"


Memory = Callable[[Sequence[Message]], Toolset]
"""Makes the memory tool for the look before these messages are dropped; it asks nobody."""
FLUSH = (
    "The conversation below is about to be shortened to a summary. Save with the memory tool what "
    "must outlive it and is not in memory yet: the user's wishes and corrections, lasting facts "
    "that had to be found out. No progress reports, no secrets. If there is nothing, answer "
    "`Nothing to save.`"
)
MOST_TOKENS = 24_000
"""Of the messages that are looked at; longer ones are cut at their quieter places."""
SHARE = 0.5
"""Of the model's window, where that is known."""


async def flush(
    messages: Sequence[Message], *, model: ChatModel, memory: Memory, place: Place
) -> list[UsageReported]:
    """Let the model save what it wants of what was said in `messages`, which are about to go.

    The writes are judged by these messages. Nothing of this joins the conversation. Raises what
    the model raises.
    """
    tools = memory(messages).only("memory") if messages else Toolset()
    if not len(tools):
        return []
    room = MOST_TOKENS if model.window is None else min(MOST_TOKENS, int(model.window * SHARE))
    told = "\n\n".join(entries(said(messages), (), tokens=room))
    request = Request(messages=(Message.system(FLUSH), Message.user(told)), tools=tools)
    used: list[UsageReported] = []
    async with aclosing(model.stream(request)) as stream:
        async for item in stream:
            if isinstance(item, Reply):
                used.append(UsageReported(item.usage, item.model or model.name, "memory"))
                for call in item.message.calls:
                    await execute(call, tools, ToolContext(call=call, place=place))
    return used
