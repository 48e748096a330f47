"""A conversation written out for the model that summarises it, within a budget.

Made from whole results, not from pruned ones: of a long result its head, its tail, and between
them the lines that stand out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from hermes_nb.context.facts import Fact
from hermes_nb.context.marks import is_bridge, is_summary
from hermes_nb.core.messages import Message
from hermes_nb.safety.redact import redact

_MOST = 8_000
_LEAST = 400
"""Characters of one message that are written out: as many as the budget allows, between these."""
_OMITTED = "[…]"


def cost(text: str) -> int:
    """Return what a text costs in tokens at most: a third of its bytes.

    That is more than English or code takes, and about right for scripts of three bytes a letter.
    """
    return len(text.encode("utf-8", "replace")) // 3 + 1


def entries(messages: Sequence[Message], facts: Iterable[Fact], *, tokens: int) -> list[str]:
    """Return a text for each message, without secrets, of about `tokens` tokens if possible.

    A `Fact.source` is an index into `messages`. An earlier summary among them is left out.
    """
    lines: dict[int, list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.section == "seen":
            lines[fact.source].append(fact)
    limit = _limit([_length(message) for message in messages], tokens * 3)
    seen: set[str] = set()
    out = []
    for index, message in enumerate(messages):
        if is_summary(message) or is_bridge(message):
            continue
        text = _written(message, lines.get(index, ()), limit)
        if message.role == "tool" and len(message.text) > _LEAST:
            if message.text in seen:
                text = f"RESULT {message.name}: the same as before"
            seen.add(message.text)
        out.append(redact(text).replace("</transcript", "< /transcript"))
    return out


def chunked(texts: Iterable[str], tokens: int) -> list[str]:
    """Return texts joined to chunks of at most `tokens` tokens each."""
    chunks: list[list[str]] = [[]]
    used = 0
    for piece in (piece for text in texts for piece in _pieces(text, tokens - 1)):
        each = cost(piece) + 1
        if used + each > tokens and chunks[-1]:
            chunks.append([])
            used = 0
        chunks[-1].append(piece)
        used += each
    return ["\n".join(chunk) for chunk in chunks if chunk]


def _pieces(text: str, tokens: int) -> Iterator[str]:
    """Yield a text in pieces of which each fits: a character costs four thirds at most."""
    while cost(text) > tokens:
        yield text[: max(tokens * 3 // 4, 1)]
        text = text[max(tokens * 3 // 4, 1) :]
    yield text


def _limit(lengths: Sequence[int], room: int) -> int:
    """Return the length to which each message may be written out so that all fit into `room`."""
    low, high = _LEAST, _MOST
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(each, middle) for each in lengths) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _length(message: Message) -> int:
    written = sum(len(call.arguments_json()) for call in message.calls)
    return len(message.text) + written + 24


def _written(message: Message, facts: Sequence[Fact], limit: int) -> str:
    if message.role == "tool":
        state = " (failed)" if message.failed else ""
        return f"RESULT {message.name}{state}: {_shown(message.text, facts, limit)}"
    lines = []
    if message.text or not message.calls:
        cut_short = " (interrupted)" if message.interrupted else ""
        pictures = f" ({len(message.images)} images)" if message.images else ""
        spoken = _shown(message.text, facts if not message.calls else (), limit)
        lines.append(f"{message.role.upper()}{cut_short}{pictures}: {spoken}")
    for call in message.calls:
        arguments = _shown(call.arguments_json(), facts, limit // len(message.calls))
        lines.append(f"CALL {call.name} {arguments}")
    return "\n".join(lines)


def _shown(text: str, facts: Sequence[Fact], limit: int) -> str:
    """Return a text in about `limit` characters: head, the lines that stand out, tail."""
    if len(text) <= limit:
        return text
    head, end = text[: limit * 4 // 10], text[-(limit * 2 // 10) :]
    room = limit - len(head) - len(end)
    noted: list[Fact] = []
    for fact in sorted(facts, key=lambda fact: -fact.weight):
        if fact.text in head or fact.text in end:
            continue
        room -= len(fact.text) + 1
        if room < 0 and len(noted) > 1:
            break
        noted.append(fact)
    order = {id(fact): place for place, fact in enumerate(facts)}
    noted.sort(key=lambda fact: order[id(fact)])
    return "\n".join([head, _OMITTED, *(fact.text for fact in noted), _OMITTED, end])
