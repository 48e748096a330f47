"""The tools that bring back, word for word, what an engine took out of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hermes_nb.context.archive import Archive, everything
from hermes_nb.context.references import positions_of
from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.messages import Image, Message
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Tool, ToolContext, ToolOutput, Toolset

PART = 20_000
"""Characters that `context_expand` shows at a time."""
HITS = 10
_IMAGES = 4
_SNIPPET = 400

InView = Callable[[], Collection[int]]
"""Says which rows, by their positions, the model sees in full as it is."""


def reading_tools(
    archive: Archive,
    unstored: Mapping[str, Sequence[Message]],
    in_view: InView = frozenset,
) -> Toolset:
    """Return the tools over a session's rows, and over spans that no store has, by id.

    What is `in_view` is not searched: the question that made the model search would come first.
    """
    return Toolset([_search(archive, unstored, in_view), _expand(archive, unstored)])


def _search(archive: Archive, unstored: Mapping[str, Sequence[Message]], in_view: InView) -> Tool:
    def run(_: ToolContext, arguments: Mapping[str, Any]) -> str:
        query = str(arguments["query"])
        lines = _found(archive, query, in_view())
        for name, messages in unstored.items():
            lines += [
                f"{name} {message.role}: {_around(everything(message), query)}"
                for message in messages
                if query.casefold() in everything(message).casefold()
            ]
        if not lines:
            message = f"nothing that left the view fits {query!r}; try fewer or other words"
            raise ToolError(message)
        return "\n".join([*lines[:HITS], "context_expand(id) shows a message in full."])

    return Tool(
        name="context_search",
        description="Find earlier messages of this conversation that are no longer in view.",
        parameters=_schema({"query": {"type": "string", "description": "words, or exact text"}}),
        run=run,
        toolset="context",
        describe=lambda arguments: one_line(str(arguments.get("query", "")), 60),
    )


def _expand(archive: Archive, unstored: Mapping[str, Sequence[Message]]) -> Tool:
    def run(_: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        name = str(arguments["id"]).strip()
        part = int(arguments.get("part") or 1)
        text, images = _span(archive, unstored, name)
        parts = max(1, -(-len(text) // PART))
        if not 1 <= part <= parts:
            message = f"{name} has {parts} parts; ask for one from 1 to {parts}"
            raise ToolError(message)
        shown = text[(part - 1) * PART : part * PART]
        if part < parts:
            shown += (
                f"\n[part {part} of {parts}; context_expand({name!r}, part={part + 1}) goes on]"
            )
        return ToolOutput(shown, images[:_IMAGES])

    return Tool(
        name="context_expand",
        description="Show earlier messages word for word by the id that stands in their place.",
        parameters=_schema(
            {
                "id": {"type": "string", "description": "such as s12-57 or s12"},
                "part": {"type": "integer", "minimum": 1, "default": 1},
            },
            required=["id"],
        ),
        run=run,
        toolset="context",
        describe=lambda arguments: one_line(str(arguments.get("id", "")), 60),
    )


def _found(archive: Archive, query: str, in_view: Collection[int]) -> list[str]:
    """Return a line for each stored message that fits: as the store ranks them, or by its text."""
    try:
        hits = archive.search(query, limit=3 * HITS)
    except StoreError as error:
        message = f"the conversation cannot be searched now: {error}"
        raise ToolError(message) from error
    places = [hit.position for hit in hits if hit.position not in in_view]
    rows = {place: row for place in places for row in archive.span(place, place)}
    lines = [
        f"s{p} {row.message.role}: {_around(everything(row.message), query)}"
        for p, row in rows.items()
    ]
    if not lines:
        lines = [
            f"s{row.position} {row.message.role}: {_around(everything(row.message), query)}"
            for row in archive.containing(query, limit=HITS, without=in_view)
        ]
    return lines


def _span(
    archive: Archive, unstored: Mapping[str, Sequence[Message]], name: str
) -> tuple[str, tuple[Image, ...]]:
    """Return the text of a span, and its images; raise `ToolError` when there is no such span."""
    between = positions_of(name)
    if between is not None:
        rows = archive.span(*between)
        entries = [(f"s{row.position} ", row.message) for row in rows]
    else:
        entries = [("", message) for message in unstored.get(name, ())]
    if not entries:
        message = f"there is nothing under {name!r}; use an id as it stands in the conversation"
        raise ToolError(message)
    images = tuple(image for _, message in entries for image in message.images)
    return "\n\n".join(f"{mark}{_whole(message)}" for mark, message in entries), images


def _whole(message: Message) -> str:
    pictures = f" [{len(message.images)} images]" if message.images else ""
    name = f" {message.name}" if message.name else ""
    return f"{message.role}{name}:{pictures}\n{everything(message)}"


def _around(text: str, query: str) -> str:
    """Return a piece of a text where the query, or its longest word that occurs, stands."""
    folded = text.casefold()
    words = [query, *sorted(query.split(), key=len, reverse=True)]
    at = next((place for word in words if (place := folded.find(word.casefold())) >= 0), 0)
    first = max(0, at - _SNIPPET // 3)
    return one_line(text[first : first + _SNIPPET], _SNIPPET)


def _schema(properties: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }
