"""Shows what is ours outside of a turn: drawn in a terminal that can, else as IPython shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO


def can_draw(file: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether a stream is a terminal that draws, and its user wants colours."""
    if environment.get("NO_COLOR") or environment.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    return file.isatty()


def show(bundle: Mapping[str, str], metadata: Mapping[str, object] | None = None) -> None:
    """Show a MIME bundle that has Markdown, which we wrote, and plain text."""
    if can_draw(sys.stdout):
        from hermes_nb.notebook.display.terminal_page import draw  # and with it rich

        draw(bundle["text/markdown"], sys.stdout)
    else:
        from IPython.display import display

        display(dict(bundle), raw=True, metadata=dict(metadata or {}))
