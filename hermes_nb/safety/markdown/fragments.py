"""HTML that we write ourselves, cleaned once more on its way out: what escaped us is no tag.

Panels are built from text that was escaped piece by piece. One piece forgotten must not become a
script, a picture from elsewhere, or an element that a page's own code finds by its name.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_HTML = "div span b i small br ul ol li code pre p em strong details summary sub".split()
_SVG = "svg g rect line polyline title".split()
_SHAPE = frozenset("x y x1 y1 x2 y2 width height rx fill points".split())
_ATTRIBUTES = {
    **{tag: frozenset({"class", "role", "aria-label", "tabindex"}) for tag in (*_HTML, "svg")},
    **{tag: _SHAPE | {"class"} for tag in ("rect", "line", "polyline", "g")},
}
_ATTRIBUTES["svg"] |= {"width", "height", "viewBox", "preserveAspectRatio"}
_ATTRIBUTES["i"] |= {"style"}


@cache
def _cleaner() -> Any:  # noqa: ANN401 - the library has no types for it
    import nh3

    return nh3.Cleaner(
        tags={*_HTML, *_SVG},
        attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
        clean_content_tags={"script", "style"},
        filter_style_properties={"background"},
        url_schemes=set(),
        link_rel=None,
    )


def clean_html(fragment: str) -> str:
    """Return a fragment of ours without anything but text, plain elements and small drawings."""
    return str(_cleaner().clean(fragment))
