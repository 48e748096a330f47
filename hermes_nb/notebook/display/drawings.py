"""Below the turn, display the images and charts that the agent's code drew.

The model only receives a note about them. Tables and printed text are in the call's fold. HTML of
unknown origin is never displayed in a turn's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.notebook.shell import Shell, has_kernel

PICTURES = ("image/png", "image/jpeg", "image/gif")
CHARTS = ("application/vnd.plotly.", "application/vnd.vega.", "application/vnd.vegalite.")
"""Prefixes of MIME types that a front end renders from data."""
MOST = 8
"""Maximum number of images per call; the last ones are displayed."""
LARGEST = 5_000_000
"""Maximum characters of an image, because everything displayed is saved with the notebook."""


def drawings(outputs: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Return the MIME bundles of the images among the outputs."""
    bundles = []
    for output in outputs:
        data = output.get("data") or {}
        if drawn := {mime: value for mime, value in data.items() if _fits(mime, value)}:
            text = one_line(visible(str(data.get("text/plain", "a picture"))), 200)
            bundles.append({**drawn, "text/plain": text})
    return bundles[-MOST:]


def is_drawing(data: Mapping[str, Json]) -> bool:
    """Return whether a MIME bundle contains an image or chart."""
    return any(_fits(mime, value) for mime, value in data.items())


def show_drawings(shell: Shell, outputs: Sequence[Mapping[str, Json]]) -> None:
    """Display the images among the outputs, below the running cell's other outputs."""
    if not has_kernel(shell):
        return
    from IPython.display import display

    for bundle in drawings(outputs):
        display(bundle, raw=True)


def _fits(mime: str, value: object) -> bool:
    if mime in PICTURES:
        return isinstance(value, str) and len(value) <= LARGEST
    return mime.startswith(CHARTS) and len(str(value)) <= LARGEST
