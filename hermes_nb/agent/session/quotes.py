"""Search results as quotes from past conversations, for display."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hermes_nb.context.boundaries import is_ours, is_shortened
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Message, Role
from hermes_nb.core.protocols import Hit, SessionStore
from hermes_nb.memory.recall import spoken
from hermes_nb.safety.redact import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A passage from a conversation, or from a tool's output, that matches a search."""

    hit: Hit
    """The matching message."""
    text: str
    """One line of the message, without secrets."""
    marks: tuple[tuple[int, int], ...]
    """The start and end of each matching word in `text`."""


def quotes(store: SessionStore, query: str, *, limit: int) -> list[Quote]:
    """Return passages that match a query, best first, grouped by session.

    If user and assistant messages yield fewer than `limit`, tool outputs follow. Summaries,
    shortened results, results of the session search, and matches only in text that was added for
    the model are left out.
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
    """Return the matching passage in a message, or None if it should not be displayed."""
    from hermes_nb.memory.search import finding

    repeated = message.name == "session_search" or is_shortened(message.text)
    hidden = is_ours(message) or (message.role == "tool" and repeated)
    line = "" if hidden else redact(spoken(message))
    terms = finding.nearest(message.text, asked)
    added = finding.matches(message.text, terms) and not finding.matches(line, terms)
    if not line.strip() or added:
        return None
    text = visible(finding.snippet(line, terms))
    return Quote(hit=hit, text=text, marks=tuple(finding.matches(text, terms)))
