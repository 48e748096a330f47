"""The engine that summarises nothing: old spans leave references behind and can be read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hermes_nb.context.archive import Archive, is_cut
from hermes_nb.context.assembly import fitted, spliced
from hermes_nb.context.boundaries import flat, grouped, size
from hermes_nb.context.facts import Fact, find_facts
from hermes_nb.context.gauge import Gauge, Limits, window_of
from hermes_nb.context.ledger import MOST_TOKENS, ledger, read_ledger
from hermes_nb.context.marks import is_references, is_summary
from hermes_nb.context.plan import Plan, make_plan, noted
from hermes_nb.context.reading import reading_tools
from hermes_nb.context.references import (
    HEADER,
    carried,
    condensed,
    read_references,
    reference,
    spans,
)
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import ChatModel, Compression, ContextEngine, Request, SessionStore
from hermes_nb.core.tools import Toolset

NOTE = (
    "Earlier parts of this conversation are not in view but kept word for word: "
    "context_search(query) finds a place in them, context_expand(id) shows it."
)


class Lossless(ContextEngine):
    """Keeps a conversation under its limits by moving old spans out of view, into `store`.

    `window` is in tokens, by default that of `model`; the smaller one counts. Ids are made from
    positions in the store, so they outlive the process. A span that is not in the store is kept in
    memory, for as long as the engine lives.
    """

    def __init__(
        self,
        store: SessionStore,
        session_id: str,
        *,
        model: ChatModel | None = None,
        window: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._archive = Archive(store, session_id)
        self._gauge = Gauge(lambda: window_of(model, window), limits or Limits())
        self._unstored: dict[str, list[Message]] = {}
        self._live: Callable[[], Request] | None = None

    @property
    def gauge(self) -> Gauge:
        """What decides when to compress, for whoever shows it."""
        return self._gauge

    def observe(self, usage: Usage) -> None:
        """Take note of what a request really used."""
        self._gauge.observe(usage)

    def should_compress(self, prompt_tokens: int) -> bool:
        """Say whether a prompt of that many tokens should be compressed before it is sent."""
        return self._gauge.due(prompt_tokens)

    def tools(self) -> Toolset:
        """Return `context_search` and `context_expand`."""
        return reading_tools(self._archive, self._unstored, self._in_view)

    def session_started(
        self,
        session_id: str,  # noqa: ARG002 - the archive knows it
        live: Callable[[], Request],
    ) -> None:
        """Begin with a session: from now on it is known what the model sees."""
        self._live = live

    def session_ended(self) -> None:
        """Let go of the session."""
        self._live = None

    def _in_view(self) -> set[int]:
        """Return the positions of the messages that the model sees as they were said."""
        if self._live is None:
            return set()
        messages = [message for message in self._live().messages if message.role != "system"]
        located = self._archive.locate(messages)
        whole = (message for message in messages if not is_cut(message))
        return {located[id(message)] for message in whole if id(message) in located}

    async def compress(
        self,
        messages: Sequence[Message],
        focus: str = "",  # noqa: ARG002 - nothing is chosen here, all of it is kept
    ) -> Compression:
        """Return a shorter conversation; the input is never mutated."""
        plan = make_plan(messages, self._gauge, self._archive, way_back)
        enough = plan.enough()
        made = plan.result(plan.pruned, note=NOTE) if enough else self._referenced(plan)
        self._gauge.settle(size(plan.groups), size(grouped(made.messages)))
        return made

    def _referenced(self, plan: Plan) -> Compression:
        whole, pruned = plan.cut()
        if not whole.vanishing:
            return plan.result(fitted(plan.pruned, plan.aim, plan.pruner), note=NOTE)
        new = []
        for span in spans(whole.vanishing):
            each = reference(span, plan.located)
            if each.id.startswith("m"):
                self._unstored[each.id] = flat(span)
            new.append(each)
        gone = flat(whole.vanishing)
        table = condensed([*read_references(gone), *new], max(plan.aim.hard // 4, 200))
        earlier, known = _earlier(gone)
        facts = [*known, *find_facts(self._archive.originals(gone, plan.located))]
        listed = ledger(facts, tokens=min(MOST_TOKENS, plan.aim.hard // 8), messages=len(gone))
        lines = "\n".join([HEADER, *(each.line() for each in table)])
        text = "\n\n".join(part for part in (lines, earlier, listed) if part)
        groups = spliced(pruned.head, text, pruned.kept, pruned.tail, gone=gone)
        made = Compression(
            messages=tuple(flat(fitted(groups, plan.aim, plan.pruner))),
            phase="referenced",
            shortened=plan.shortened(),
            dropped=len(gone),
            summary=text,
        )
        return noted(made, NOTE)


def way_back(position: int | None) -> str | None:
    """Return how a shortened message is read again; what is not stored is not shortened."""
    return None if position is None else f"context_expand('s{position}')"


def _earlier(messages: Sequence[Message]) -> tuple[str, list[Fact]]:
    """Return the text and the facts of earlier compressions, whichever engine made them."""
    texts: list[str] = []
    facts: list[Fact] = []
    for message in messages:
        if is_references(message):
            texts.append(carried(message))
        elif is_summary(message):
            texts.append(read_ledger(message.text)[0])
        else:
            continue
        facts += read_ledger(message.text)[1]
    return "\n\n".join(text for text in texts if text), facts
