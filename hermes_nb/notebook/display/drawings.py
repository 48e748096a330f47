"""Pictures below a turn: what scratch code drew, of which the model reads only that it is there.

Pictures and what front ends draw from data are shown; tables and printed text are in the call's
fold, and HTML of unknown origin has no business in a turn's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.notebook.shell import Shell, has_kernel

PICTURES = ("image/png", "image/jpeg", "image/gif")
CHARTS = ("application/vnd.plotly.", "application/vnd.vega.", "application/vnd.vegalite.")
"""Beginnings of MIME types whose data a front end draws by itself."""
MOST = 8
"""Pictures of one call; of more, the last ones."""
LARGEST = 5_000_000
"""Characters of a picture: all that is shown is saved with the notebook."""


def drawings(outputs: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Return the MIME bundles of the pictures among some outputs."""
    bundles = []
    for output in outputs:
        data = output.get("data") or {}
        if drawn := {mime: value for mime, value in data.items() if _fits(mime, value)}:
            told = one_line(visible(str(data.get("text/plain", "a picture"))), 200)
            bundles.append({**drawn, "text/plain": told})
    return bundles[-MOST:]


def is_drawing(data: Mapping[str, Json]) -> bool:
    """Say whether a MIME bundle has something drawn in it."""
    return any(_fits(mime, value) for mime, value in data.items())


def show_drawings(shell: Shell, outputs: Sequence[Mapping[str, Json]]) -> None:
    """Display the pictures among some outputs, below what the running cell shows already."""
    if not has_kernel(shell):
        return
    from IPython.display import display

    for bundle in drawings(outputs):
        display(bundle, raw=True)


def _fits(mime: str, value: object) -> bool:
    if mime in PICTURES:
        return isinstance(value, str) and len(value) <= LARGEST
    return mime.startswith(CHARTS) and len(str(value)) <= LARGEST
