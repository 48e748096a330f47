"""What a turn shows: below its cell, in a terminal, of its children and maps."""

from __future__ import annotations

import sys

from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import (
    CellView,
    FinalView,
    TerminalView,
    View,
    can_ask,
    can_draw,
    has_kernel,
)
from hermes_nb.notebook.shell import Shell


def make_view(shell: Shell, *, quiet: bool = False) -> View:
    """Return the view that fits where the cell runs."""
    transcript = Transcript()
    if not has_kernel(shell):
        return terminal_view(transcript, quiet=quiet)
    return FinalView(transcript) if quiet or not can_ask(shell) else CellView(transcript)


def terminal_view(transcript: Transcript, *, quiet: bool = False) -> View:
    """Return the view for standard output: drawn in a terminal that can, else plain text."""
    if not can_draw(sys.stdout):
        return TerminalView(transcript)
    from hermes_nb.notebook.display.terminal import DrawnView  # and with it rich's Markdown

    return DrawnView(transcript, quiet=quiet)
