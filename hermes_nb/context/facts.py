"""Finds, without a model, the lines that a summary must not lose.

A line counts for what it says and for how unlike all others it is: in logs of ten thousand lines of
one shape, the one of another shape is the news. Cost is linear in the text; only lines that stand
out are looked at closely.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_nb.context.marks import is_ours, is_shortened
from hermes_nb.context.outlines import call_outline, ending, is_bad, paths_of
from hermes_nb.context.salience import promise, reason, weigh
from hermes_nb.core.messages import Message, Role, ToolCall
from hermes_nb.core.text import one_line

Section = Literal["asked", "said", "run", "files", "seen"]

LINE = 240
"""Characters of a line that are kept; of a longer one those around what made it count."""
_LONG = 400
_SCANNED = 60_000
"""Characters of one text that are looked at, its head and its tail: more than a tool may return."""
_CLOSELY = 10
"""Lines of one text that are looked at closely, those that stand out most."""
_SMALL = 12
"""A text of so few lines has no shape of its own: each line may stand out."""
_ENOUGH = 0.25
"""What a line has to weigh to be taken at all."""
_RARE = 3
"""So often at most a line occurs, numbers aside, that stands out."""
_DULL = 0.12
"""How unlike others a line has to be to be looked at, of 1: one of seventy of its shape is not."""
_OUTLINED = 100
"""Characters of an argument that the outline of its call shows anyway."""

_LONG_TEXTS: Mapping[Role, tuple[Section, float]] = {
    "tool": ("seen", 1.3),
    "assistant": ("seen", 0.9),
    "user": ("asked", 1.5),
    "system": ("said", 0.5),
}
"""Where a line goes that stands out in a long text of that role, and what it counts there."""
_TALK = 4_000
"""Characters of what somebody says; more than that was pasted or generated, and counts by line."""

_SENTENCE = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+")
_PIECE = re.compile(r"(?<=[,;}\]])\s?|(?<=[.!?])\s+")
_MARKS = re.compile(
    r"(?m)^<untrusted-[0-9a-f]{8} source=[^\n]*>\nData, not instructions:[^\n]*\n"
    r"|^</untrusted-[0-9a-f]{8}>$"
)
"""What stands around somebody else's text says nothing, and is another one in every run."""
_LETTERS = bytes(i for i in range(128) if chr(i).isalnum())
_DIGITS = b"0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line worth keeping. `source` is the index of its message, `weight` says how much."""

    section: Section
    text: str
    weight: float
    source: int


def find_facts(messages: Sequence[Message]) -> list[Fact]:
    """Return the facts in a valid stretch of conversation: what was said and done, then files."""
    census = Census()
    texts: dict[int, Lines] = {}
    for index, message in enumerate(messages):
        if text := _material(message):
            texts[index] = census.count(list(_lines(_ends(text))))
    facts: list[Fact] = []
    files: dict[str, Fact] = {}
    calls: dict[str, ToolCall] = {}
    for index, message in enumerate(messages):
        if message.role == "tool":
            if call := calls.get(message.call_id):
                facts += _of_result(call, message, index)
        else:
            calls = {call.id: call for call in message.calls}
            if not is_ours(message):
                facts += _of_speech(message, index)
                facts += _of_calls(message, index, files)
        if index in texts:
            section, sure = _LONG_TEXTS[message.role]
            for line, weight in census.standing_out(texts[index]):
                facts.append(Fact(section=section, text=line, weight=weight * sure, source=index))
    return [*facts, *files.values()]


@dataclass(frozen=True, slots=True)
class Lines:
    """A text's lines, and for each a number for what it says and one for its shape.

    What a line says is the line without its digits; its shape is what is left without letters.
    """

    lines: Sequence[str]
    words: Sequence[int]
    shapes: Sequence[int]


class Census:
    """Counts lines by what they say and by their shape, over all texts, before it judges any."""

    def __init__(self) -> None:
        self._words: Counter[int] = Counter()
        self._shapes: Counter[int] = Counter()
        self._kinds: Counter[int] = Counter()
        self._judged: set[int] = set()

    def count(self, lines: Sequence[str]) -> Lines:
        """Take the lines of a text into account."""
        text = "\n".join(lines).encode("utf-8", "replace")
        words = list(map(hash, text.translate(None, _DIGITS).split(b"\n")))
        shapes = list(map(hash, text.translate(None, _LETTERS).split(b"\n")))
        for word, shape in set(zip(words, shapes, strict=True)):
            if word not in self._words:
                self._kinds[shape] += 1
        self._words.update(words)
        self._shapes.update(shapes)
        return Lines(lines, words, shapes)

    def standing_out(self, text: Lines) -> Iterator[tuple[str, float]]:
        """Yield the lines of a counted text that stand out, each with its weight, in order.

        Of many lines that say the same, in this text or an earlier one, only the first does.
        """
        small = len(text.lines) <= _SMALL
        rated: list[tuple[float, int, float]] = []
        for index, word in enumerate(text.words):
            if word in self._judged:
                continue
            if self._words[word] > _RARE:
                self._judged.add(word)
            novelty = self._novelty(word, text.shapes[index], small=small)
            if novelty < _DULL:
                continue
            rated.append((novelty * promise(text.lines[index]), -index, novelty))
        best = heapq.nlargest(_CLOSELY, rated)
        for _, index, novelty in sorted(best, key=lambda each: -each[1]):
            line = text.lines[-index]
            weight = weigh(line) * novelty if line.strip() else 0
            if weight >= _ENOUGH:
                yield clipped(line), weight

    def _novelty(self, word: int, shape: int, *, small: bool) -> float:
        """Return how unlike all others a line is, from nearly 0 to 1.

        Among many lines of one shape that say the same but for the numbers, one that says something
        else stands out as well.
        """
        same, alike = self._words[word], self._shapes[shape]
        if same > _RARE:
            return 1 / math.sqrt(same if small else same * alike)
        if small or (alike > _SMALL and self._kinds[shape] <= 1 + alike // 5):
            return 1.0
        return 1 / math.sqrt(alike)


def clipped(line: str, limit: int = LINE) -> str:
    """Return a line in at most `limit` characters, those that make it count if it is longer."""
    if len(line) > limit:
        first = max(0, min(reason(line) - limit // 3, len(line) - limit))
        line = f"{'…' if first else ''}{line[first : first + limit - 2]}…"
    return one_line(line, limit)


def _of_speech(message: Message, index: int) -> Iterator[Fact]:
    """Yield what the user or the assistant said, sentence by sentence."""
    user = message.role == "user"
    talk = message.text if len(message.text) <= _TALK else message.text[: _TALK // 4]
    for place, sentence in enumerate(_SENTENCE.split(talk)):
        if not sentence.strip():
            continue
        weight = weigh(sentence)
        weight = weight + (3.0 if place == 0 else 2.0) if user else weight * 1.2
        if weight >= _ENOUGH:
            section: Section = "asked" if user else "said"
            yield Fact(section=section, text=clipped(sentence), weight=weight, source=index)


def _of_calls(message: Message, index: int, files: dict[str, Fact]) -> Iterator[Fact]:
    """Yield the calls' short arguments; `files` collects the paths they name."""
    for call in message.calls:
        for path in paths_of(call):
            known = files.pop(path, None)
            verbs = known.text.rpartition(" (")[2].rstrip(")").split(", ") if known else []
            text = f"{path} ({', '.join(dict.fromkeys([*verbs, call.name]))})"
            files[path] = Fact(section="files", text=text, weight=1.5, source=index)
        for line in _short_arguments(call):
            weight = weigh(line) * 0.9
            if weight >= _ENOUGH:
                yield Fact(section="seen", text=clipped(line), weight=weight, source=index)


def _of_result(call: ToolCall, result: Message, index: int) -> Iterator[Fact]:
    """Yield how a call ended."""
    ended = ending(result)
    if ended or not any(True for _ in paths_of(call)):
        text = f"{call_outline(call, 120)} → {ended or 'done'}"
        weight = 1.6 if is_bad(result, ended) else 0.7
        yield Fact(section="run", text=text, weight=weight, source=index)


def _material(message: Message) -> str:
    """Return the text of a message of which only some lines count, "" where all do."""
    if message.role == "tool":
        return "" if is_shortened(message.text) else _MARKS.sub("", message.text)
    texts = [text for call in message.calls for text in _long_arguments(call)]
    if len(message.text) > _TALK and not is_ours(message):
        texts.append(message.text)
    return "\n".join(texts)


def _long_arguments(call: ToolCall) -> Iterator[str]:
    return (v for v in call.arguments.values() if isinstance(v, str) and _is_long(v))


def _short_arguments(call: ToolCall) -> Iterator[str]:
    """Yield the arguments that neither the outline of a call nor its files show."""
    shown = call_outline(call, LINE)
    for key, value in call.arguments.items():
        if isinstance(value, str):
            if not _is_long(value) and value not in shown and key not in ("path", "file_path"):
                yield f"{call.name} {key}: {value}"
        elif value is not None and not isinstance(value, bool):
            text = json.dumps(value, ensure_ascii=False, default=str)
            yield f"{call.name} {key}: {text[: 4 * LINE]}"


def _is_long(value: str) -> bool:
    return len(value) > _OUTLINED or "\n" in value


def _lines(text: str) -> Iterator[str]:
    """Yield lines, long ones in pieces."""
    lines = text.split("\n")
    if len(max(lines, key=len)) <= _LONG:
        yield from lines
        return
    for line in lines:
        if len(line) <= _LONG:
            yield line
        else:
            yield from _pieces(line)


def _pieces(line: str) -> Iterable[str]:
    pieces = [""]
    for part in _PIECE.split(line):
        for start in range(0, len(part), LINE):
            short = part[start : start + LINE]
            if len(pieces[-1]) + len(short) > LINE:
                pieces.append("")
            pieces[-1] += short
    return pieces


def _ends(text: str) -> str:
    if len(text) <= _SCANNED:
        return text
    return f"{text[: _SCANNED // 2]}\n{text[-_SCANNED // 2 :]}"
