"""The texts by which a conversation shows what compression did to it.

An engine keeps no state that a killed process could lose: what it needs of an earlier compression
it reads from these texts.
"""

from __future__ import annotations

import re

from hermes_nb.core.messages import Message, Text

SUMMARY = "[Earlier conversation, compressed]"
REFERENCES = "[Earlier conversation, kept word for word elsewhere]"
LEDGER = "[Facts kept word for word, found by rule]"
GO_ON = "[Go on from there.]"
UNDERSTOOD = "[I go on from there.]"
"""The last two stand only where two messages of one role would meet."""

_BRACKET = "["
SHORT = 200
"""Characters that a result may have and stay; also the length of what is left of a longer one."""
_SHORTENED = re.compile(r"\[shortened(?: #(\d+))?\] ")
LEFT_OUT = "characters left out"
"""Part of the marker in whatever was cut in the middle."""


def shortened(line: str, position: int | None) -> str:
    """Return `line` marked as what is left of a result that is stored at `position`."""
    return f"[shortened{'' if position is None else f' #{position}'}] {line}"


def is_shortened(text: str) -> bool:
    """Say whether a result's text is what pruning left of it."""
    return len(text) <= SHORT and _SHORTENED.match(text) is not None


def position_of(text: str) -> int | None:
    """Return where the whole of a shortened result is stored, None if that is not known."""
    match = _SHORTENED.match(text) if len(text) <= SHORT else None
    return int(match[1]) if match and match[1] else None


def is_summary(message: Message) -> bool:
    """Say whether a message stands for what was compressed."""
    return _begins(message, SUMMARY)


def is_references(message: Message) -> bool:
    """Say whether a message lists what is kept elsewhere."""
    return _begins(message, REFERENCES)


def is_bridge(message: Message) -> bool:
    """Say whether a message only keeps two others of one role apart."""
    return _begins(message, _BRACKET) and message.text in (GO_ON, UNDERSTOOD)


def is_ours(message: Message) -> bool:
    """Say whether compression put the message there as a whole."""
    if not _begins(message, _BRACKET):
        return False
    return is_summary(message) or is_references(message) or is_bridge(message)


def cut(text: str, limit: int, *, way_back: str = "") -> str:
    """Return at most about `limit` characters: head (70 %) and tail around a marker."""
    if len(text) <= limit:
        return text
    head = limit * 7 // 10
    tail = limit - head
    back = f"; {way_back}" if way_back else ""
    end = text[-tail:] if tail else ""
    return f"{text[:head]}\n[… {len(text) - limit:,} {LEFT_OUT}{back} …]\n{end}"


def _begins(message: Message, mark: str) -> bool:
    first = message.parts[0] if message.parts else None
    return (
        isinstance(first, Text)
        and first.text.startswith(mark)
        and message.role in ("user", "assistant")
        and not message.calls
    )
