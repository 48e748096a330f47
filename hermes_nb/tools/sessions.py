"""The toolset `sessions`: search past conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Origin as TextOrigin
from hermes_nb.core.messages import least_trusted
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.tools import Arguments, ToolContext, ToolOutput, Toolset
from hermes_nb.memory.recall import Passage, Recall, Sort
from hermes_nb.tools.schema import tool


def session_tools(recall: Recall, *, model: ChatModel | None = None) -> Toolset:
    """Return the tool `session_search`; `model` writes the summaries, if given.

    The call's own session is excluded.
    """

    @tool(toolset="sessions", describe=_search_gist)
    async def session_search(
        context: ToolContext,
        query: str = "",
        limit: Annotated[int, {"minimum": 1, "maximum": 10}] = 3,
        sort: Sort = "relevance",
        session_id: str = "",
        around: int | None = None,
        window: Annotated[int, {"minimum": 1, "maximum": 50}] = 10,
        summarize: bool = False,
    ) -> ToolOutput:
        """Search past sessions; without a query, list the latest; with session_id, read that one.

        Args:
            around: message number
            window: messages before and after it
            summarize: return summaries instead of excerpts
        """
        from hermes_nb.memory.quoting import Condenser, passage_text, results_text, sessions_text

        running = tuple(filter(None, [context.place.session]))
        try:
            if session_id:
                page = await asyncio.to_thread(_page, recall, session_id, query, around, window)
                return ToolOutput(passage_text(page), origin=_origin([page]))
            if not query.strip():
                latest = await asyncio.to_thread(
                    recall.browse, limit=max(limit, 3), exclude_lineage=running
                )
                return ToolOutput(sessions_text(latest))
            found = await asyncio.to_thread(
                recall.discover, query, limit=limit, sort=sort, exclude_lineage=running
            )
            if summarize and model is not None:
                condenser = Condenser(recall=recall, model=model)
                found = await condenser.summarised(query, found, context.emit)
        except LookupError as error:
            raise ToolError(str(error)) from error
        except StoreError as error:
            raise ToolError(f"past sessions cannot be searched now: {error}") from error
        if summarize and model is None:
            found = [replace(each, note="not condensed: no model is available") for each in found]
        text = await asyncio.to_thread(results_text, found, query)
        return ToolOutput(text, origin=_origin([p for each in found for p in each.passages]))

    return Toolset([session_search])


def _origin(passages: Sequence[Passage]) -> TextOrigin:
    """Return the result's origin, which is that of the least trusted message quoted."""
    said = least_trusted(row.message.origin for each in passages for row in each.messages)
    return "outside" if said == "outside" else "workspace"


def _page(recall: Recall, session_id: str, query: str, around: int | None, window: int) -> Passage:
    """Return a page of a session around a message, or else around the query's best match."""
    if around is None:
        around = recall.place_in(session_id, query) if query.strip() else 0
    return recall.scroll(session_id, around=max(0, around), window=window)


def _search_gist(arguments: Arguments) -> str:
    return visible(str(arguments.get("query") or arguments.get("session_id") or "recent sessions"))
