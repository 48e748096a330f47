"""Draw bars with characters: stacked parts, and gauges."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 60
"""Width of a full bar in characters; fits a terminal and a narrow page."""


SHADES = "█▓▒░▚▀▄▌╬┄╳"
"""Characters for a bar's parts, enough for the usual parts of a prompt."""
EMPTY = "·"
MARK = "┃"


def shade(index: int) -> str:
    """Return the character for the part at `index`."""
    return SHADES[index % len(SHADES)]


def widths(sizes: Sequence[float], width: int = WIDTH) -> list[int]:
    """Return integers that are proportional to the sizes and add up to `width`.

    A size above zero gets at least 1 if there is enough width. If all sizes are zero, so are all
    widths.
    """
    some = [max(size, 0.0) for size in sizes]
    total = sum(some)
    if not total:
        return [0] * len(some)
    exact = [size / total * width for size in some]
    room = sum(size > 0 for size in some) <= width
    found = [max(int(share), int(share > 0 and room)) for share in exact]
    for _ in range(sum(found) - width):  # take the width of the small ones from the largest
        found[found.index(max(found))] -= 1
    short = width - sum(found)
    by_rest = sorted(range(len(found)), key=lambda i: found[i] - exact[i])
    for index in by_rest[:short]:
        found[index] += 1
    return found


def stacked(sizes: Sequence[float], width: int = WIDTH) -> str:
    """Return a bar of parts, each drawn with its own character."""
    return "".join(shade(i) * each for i, each in enumerate(widths(sizes, width)))


def gauge(used: float, whole: float, mark: float = 0.0, width: int = WIDTH) -> str:
    """Return a bar that shows the fraction used, with a mark at `mark`; "" if `whole` is 0."""
    if whole <= 0:
        return ""
    full = min(round(width * max(used, 0.0) / whole), width) or int(used > 0)
    bar = SHADES[0] * full + EMPTY * (width - full)
    at = min(round(width * mark / whole), width - 1)
    return f"{bar[:at]}{MARK}{bar[at + 1 :]}" if 0 < mark <= whole else bar
