"""One line on a terminal that says what a script's turn is doing, and goes when it is over."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from hermes_nb.core.events import (
    Event,
    MessageAdded,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
)
from hermes_nb.core.text import one_line
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

VARIABLE = "HERMES_NB_PROGRESS"
"""`0` turns the line off; where stderr is no terminal there is none in any case."""
INTERVAL = 0.1
"""Seconds between two updates while text streams."""
WIDTH = 78
CLEAR = "\r\x1b[2K"


def wanted(stream: TextIO | None = None) -> bool:
    """Say whether there is somebody to show progress to: stderr is a terminal that can redraw."""
    stream = sys.stderr if stream is None else stream
    if stream is None or os.environ.get(VARIABLE, "1") in ("0", "off", "false", "no"):
        return False
    return os.environ.get("TERM") != "dumb" and stream.isatty()


class ProgressLine:
    """An event sink that keeps rewriting one line of `stream`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._began = time.monotonic()
        self._written = 0.0
        self._characters = 0
        self._calls: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Show what an event changes."""
        match event:
            case TextDelta(text):
                self._characters += len(text)
                self._show(f"answering, {self._characters:,} characters", hurry=False)
            case ToolStarted(call):
                gist = next((str(value) for value in call.arguments.values()), "")
                self._calls[call.id] = f"{call.name} {gist}"
                self._show(self._calls[call.id])
            case ToolFinished(call):
                self._calls.pop(call.id, None)
                self._show(next(iter(self._calls.values()), "thinking"))
            case RequestRetried(reason):
                self._show(f"{reason}; asking again")
            case MessageAdded(message) if message.role in ("user", "tool") and not self._calls:
                self._characters = 0
                self._show("thinking")
            case TurnEnded():
                self.clear()
            case _:
                pass

    def clear(self) -> None:
        """Take the line away."""
        self._stream.write(CLEAR)
        self._stream.flush()

    def _show(self, text: str, *, hurry: bool = True) -> None:
        now = time.monotonic()
        if not hurry and now - self._written < INTERVAL:
            return
        self._written = now
        shown = one_line(visible(redact(text)), WIDTH - 12)
        self._stream.write(f"{CLEAR}◌ {now - self._began:.0f} s · {shown}")
        self._stream.flush()
