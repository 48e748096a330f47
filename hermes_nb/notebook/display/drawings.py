"""What scratch code draws, shown to the user below the turn.

`run_python` answers to the model, which reads of a picture that there is one. The user who asked
for it wants to look at it. Only pictures and what front ends draw from data are shown: tables and
printed text are in the call's fold, and HTML of unknown origin has no business in a turn's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_nb.core.text import one_line
from hermes_nb.notebook.display.view import has_kernel
from hermes_nb.notebook.previews import Foreign
from hermes_nb.safety.visible import visible

PICTURES = ("image/png", "image/jpeg", "image/gif")
CHARTS = ("application/vnd.plotly.", "application/vnd.vega.", "application/vnd.vegalite.")
"""Beginnings of MIME types whose data a front end draws by itself."""
MOST = 8
"""Pictures of one call; of more, the last ones."""
LARGEST = 5_000_000
"""Characters of a picture: all that is shown is saved with the notebook."""


def drawings(outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the MIME bundles of the pictures among some outputs."""
    return list(_bundles(outputs))[-MOST:]


def is_drawing(data: Mapping[str, Any]) -> bool:
    """Say whether a MIME bundle has something drawn in it."""
    return any(_fits(mime, value) for mime, value in data.items())


def show_drawings(shell: Foreign, outputs: Sequence[Mapping[str, Any]]) -> None:
    """Display the pictures among some outputs, below what the running cell shows already."""
    if not has_kernel(shell):
        return
    from IPython.display import display

    for bundle in drawings(outputs):
        display(bundle, raw=True)


def _bundles(outputs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for output in outputs:
        data = output.get("data") or {}
        drawn = {mime: value for mime, value in data.items() if _fits(mime, value)}
        if drawn:
            told = one_line(visible(str(data.get("text/plain", "a picture"))), 200)
            yield {**drawn, "text/plain": told}


def _fits(mime: str, value: object) -> bool:
    if mime in PICTURES:
        return isinstance(value, str) and len(value) <= LARGEST
    return mime.startswith(CHARTS) and len(str(value)) <= LARGEST
