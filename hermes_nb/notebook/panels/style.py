"""The panel's appearance: its stylesheet, text escaped for HTML, and charts as inline SVG.

The chart functions are pure and accept any numbers: negative and infinite values count as zero.
Only the colours of layers are our own; all others come from the theme.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Usage
from hermes_nb.core.text import amount, head_tail, one_line
from hermes_nb.safety.redact import redact
from hermes_nb.tools.mcp import Connection

STYLE = f"<style>{Path(__file__).with_name('panel.css').read_text(encoding='utf-8')}</style>"
WHOLE = 20_000
"""Maximum characters of a file; longer ones are truncated in the middle."""
WIDTH = 312
"""Width of every chart in SVG units; charts are stretched to the panel's width."""
COLOURS = (
    *("#5c6bc0", "#26a69a", "#ffa726", "#42a5f5", "#8d6e63", "#ec407a"),
    *("#9ccc65", "#ab47bc", "#26c6da", "#d4a017", "#78909c", "#ef5350"),
)
"""Colours of layers in order; neighbours differ in hue and lightness on white and on black."""
BARS = 24
"""Maximum turns in the chart, the latest ones."""
CHART_HEIGHT = 60
"""Height of the chart in SVG units."""
_GAP = 1.0
_MOST_BAR = 22.0
_SPAN = re.compile(r"`([^`\n]{1,200})`|\*\*(?=\S)((?:[^*`\n]|`[^`\n]{1,200}`){1,200})(?<=\S)\*\*")


def shown(text: str, limit: int = 160) -> str:
    """Return untrusted text as one line of HTML: redacted, escaped, hidden characters visible."""
    return html.escape(visible(one_line(redact(text), limit)))


def coded(text: str, limit: int = 160) -> str:
    """Return untrusted text as one line of HTML, with code and bold text formatted."""
    return _SPAN.sub(_tagged, shown(text, limit))


def _tagged(span: re.Match[str]) -> str:
    """Return a span of escaped text as code or bold."""
    return f"<code>{span[1]}</code>" if span[1] else f"<b>{_SPAN.sub(_tagged, span[2])}</b>"


def marked(text: str, marks: Sequence[tuple[int, int]]) -> str:
    """Return text as HTML with marked ranges, given as start and end."""
    pieces, at = [], 0
    for start, stop in marks:
        pieces += [html.escape(text[at:start]), f"<mark>{html.escape(text[start:stop])}</mark>"]
        at = stop
    return "".join([*pieces, html.escape(text[at:])])


def paragraphs(text: str, limit: int = 2_500) -> str:
    """Return untrusted text as HTML, with line breaks, code and bold text formatted."""
    safe = html.escape(visible(head_tail(redact(text), limit), lines=True))
    return f'<div class="hermes-text">{_SPAN.sub(_tagged, safe)}</div>'


def document(text: str, limit: int = WHOLE) -> str:
    """Return the text of an untrusted file as HTML in a scrolling box."""
    safe = html.escape(visible(head_tail(redact(text), limit), lines=True))
    return f'<div class="hermes-doc" tabindex="0" role="region" aria-label="text">{safe}</div>'


def two_columns(left: str, right: str) -> str:
    """Return a line of HTML with one part aligned left and the other right."""
    return f'<div class="hermes-two"><span>{left}</span><span>{right}</span></div>'


def heading(left: str, right: str = "") -> str:
    """Return a section's heading; `right` is a short fact such as a count."""
    return f'<div class="hermes-head">{two_columns(f"<b>{left}</b>", dim(right))}</div>'


def group(name: str) -> str:
    """Return the heading for a group of list items."""
    return f'<div class="hermes-group">{name}</div>'


def caution(markup: str) -> str:
    """Return HTML formatted as a warning."""
    return f'<div class="hermes-wait">{markup}</div>'


def folded(head: str, lines: Iterable[str]) -> str:
    """Return lines of HTML in a fold."""
    rows = "".join(f"<li>{line}</li>" for line in lines)
    return f"<details><summary>{head}</summary><ul>{rows}</ul></details>"


def mcp_servers(connections: Collection[Connection]) -> str:
    """Return the MCP servers in a fold, or "" without servers."""
    lines = []
    for each in connections:
        problem = f" · {dim(shown(each.error))}" if each.error else ""
        lines.append(f"{shown(each.spec.name, 60)} · {shown(each.summary)}{problem}")
    ready = sum(c.state == "ready" for c in connections)
    return (
        folded(f"MCP servers · {ready} of {len(connections)} ready", lines) if connections else ""
    )


def tag(text: str) -> str:
    """Return a small label as HTML."""
    return f'<span class="hermes-tag">{html.escape(text)}</span>'


def dim(text: str) -> str:
    """Return HTML in the colour for secondary text."""
    return f'<span class="hermes-dim">{text}</span>'


@dataclass(frozen=True, slots=True)
class Part:
    """A layer of the prompt."""

    name: str
    """Its name."""
    tokens: int
    """Its size in tokens."""


def colour(index: int) -> str:
    """Return the colour for the layer at `index`."""
    return COLOURS[index % len(COLOURS)]


def meter(used: float, limit: float, label: str) -> str:
    """Return a bar that is full at `limit`, and in the colour of errors above it."""
    width = _share(used, limit) * WIDTH
    kind = " hermes-over" if _number(used) > _number(limit) else ""
    return _picture(
        6,
        label,
        f'<rect class="hermes-rail" width="{WIDTH}" height="6" rx="3"/>'
        f'<rect class="hermes-fill{kind}" width="{width:.1f}" height="6" rx="3"/>',
    )


def gauge(parts: Sequence[Part], total: float, window: float, threshold: float, label: str) -> str:
    """Return the context window as a bar of parts, with a mark at the compression threshold.

    The sizes of the parts are estimates, so they are scaled to add up to `total`.

    Args:
        parts: the layers of the prompt
        total: tokens in use
        window: the context window in tokens
        threshold: tokens at which the conversation is compressed, or 0 for none
        label: description for screen readers
    """
    estimated = sum(_number(part.tokens) for part in parts)
    filled = _share(total, window) * WIDTH
    pieces = [f'<rect class="hermes-rail" y="8" width="{WIDTH}" height="10" rx="2"/>']
    at = 0.0
    for index, part in enumerate(parts):
        width = _share(part.tokens, estimated) * filled
        shown = max(width - _GAP, 0.0) if width > 2 * _GAP else width
        title = f"<title>{html.escape(part.name)}: {amount(part.tokens)}</title>"
        pieces.append(
            f'<rect x="{at:.1f}" y="8" width="{shown:.1f}" height="10" fill="{colour(index)}">'
            f"{title}</rect>"
        )
        at += width
    if _number(threshold):
        x = _share(threshold, window) * WIDTH
        pieces.append(f'<line class="hermes-mark" x1="{x:.1f}" x2="{x:.1f}" y1="3" y2="23"/>')
    return _picture(26, label, "".join(pieces))


def legend(parts: Sequence[Part]) -> str:
    """Return a legend of the parts, with their colours and tokens."""
    rows = [
        f'<i style="background:{colour(index)}"></i><span>{html.escape(part.name)}</span>'
        f'<span class="hermes-dim">{amount(part.tokens)}</span>'
        for index, part in enumerate(parts)
    ]
    return f'<div class="hermes-legend">{"".join(rows)}</div>'


def spending(turns: Sequence[Usage], first: int = 1) -> str:
    """Return a chart with a bar for each turn and a line for the cost.

    Cached tokens are light, others dark. `first` is the number of the first turn.
    """
    shown = turns[-BARS:]
    first += len(turns) - len(shown)
    most = max((_number(turn.input) for turn in shown), default=0.0)
    step = min(WIDTH / max(len(shown), 1), _MOST_BAR + 4)
    bars = "".join(
        piece
        for index, turn in enumerate(shown)
        for piece in _bar(turn, index, first + index, step, most)
    )
    label = f"tokens sent in each of {len(shown)} turns, at most {amount(round(most))}"
    return _picture(CHART_HEIGHT, label, bars + _cost_line(shown, step))


def _bar(turn: Usage, index: int, number: int, step: float, most: float) -> Iterator[str]:
    x, width = index * step, max(step - 4, step * 0.7)
    whole = _share(turn.input, most) * (CHART_HEIGHT - 2)
    cached = _share(turn.cached, turn.input) * whole
    cost = f", ${turn.cost:.4f}" if turn.cost is not None else ""
    text = f"turn {number}: {amount(turn.input)} sent, {amount(turn.cached)} cached{cost}"
    yield f"<g><title>{html.escape(text)}</title>"
    for kind, height, below in (("cached", cached, 0.0), ("fresh", whole - cached, cached)):
        yield (
            f'<rect class="hermes-{kind}" x="{x:.1f}" y="{CHART_HEIGHT - below - height:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}"/>'
        )
    yield "</g>"


def _cost_line(turns: Sequence[Usage], step: float) -> str:
    """Return the turns' costs as a line with its own scale, or "" if unknown."""
    costs = [_number(turn.cost or 0.0) for turn in turns]
    most = max(costs, default=0.0)
    if not (costs[1:] and most):  # a line has two ends
        return ""
    heights = (CHART_HEIGHT - 3 - _share(cost, most) * (CHART_HEIGHT - 8) for cost in costs)
    middle = step / 2 - 2
    points = " ".join(f"{index * step + middle:.1f},{y:.1f}" for index, y in enumerate(heights))
    return f'<polyline class="hermes-cost" points="{points}"/>'


def _picture(height: int, label: str, content: str) -> str:
    return (
        f'<svg class="hermes-chart" width="100%" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" role="img" aria-label="{html.escape(label)}">{content}</svg>'
    )


def _number(value: float) -> float:
    return float(value) if math.isfinite(value) and value > 0 else 0.0


def _share(part: float, whole: float) -> float:
    return min(_number(part) / _number(whole), 1.0) if _number(whole) else 0.0
