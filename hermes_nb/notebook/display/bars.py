"""Bars of characters: parts side by side, and how much of a whole is used."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 60
"""Characters of a full bar: it fits a terminal and a narrow page."""


SHADES = "█▓▒░▚▀▄▌╬┄"
"""Of the parts, one each for as many as a prompt usually has."""
EMPTY = "·"
MARK = "┃"


def shade(index: int) -> str:
    """Return the character of the part at `index`."""
    return SHADES[index % len(SHADES)]


def widths(sizes: Sequence[float], width: int = WIDTH) -> list[int]:
    """Return whole numbers that share a width as the sizes do, and sum to it.

    Whatever is there at all gets one, as long as there is room for that; nothing but zeros shares
    nothing.
    """
    some = [max(size, 0.0) for size in sizes]
    total = sum(some)
    if not total:
        return [0] * len(some)
    exact = [size / total * width for size in some]
    room = sum(size > 0 for size in some) <= width
    found = [max(int(share), int(share > 0 and room)) for share in exact]
    for _ in range(sum(found) - width):  # what the small ones were given, the largest gives
        found[found.index(max(found))] -= 1
    short = width - sum(found)
    by_rest = sorted(range(len(found)), key=lambda i: found[i] - exact[i])
    for index in by_rest[:short]:
        found[index] += 1
    return found


def stacked(sizes: Sequence[float], width: int = WIDTH) -> str:
    """Return parts side by side, each in its shade."""
    return "".join(shade(i) * each for i, each in enumerate(widths(sizes, width)))


def gauge(used: float, whole: float, mark: float = 0.0, width: int = WIDTH) -> str:
    """Return how much of a whole is used, with a mark on it; "" for no whole."""
    if whole <= 0:
        return ""
    full = min(round(width * max(used, 0.0) / whole), width) or int(used > 0)
    bar = SHADES[0] * full + EMPTY * (width - full)
    at = min(round(width * mark / whole), width - 1)
    return f"{bar[:at]}{MARK}{bar[at + 1 :]}" if 0 < mark <= whole else bar
