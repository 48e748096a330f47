"""Stream a turn's text to a terminal without cursor control."""

from __future__ import annotations

import sys

from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    ChildFinished,
    Event,
    MessageAdded,
    RequestRetried,
    TextDelta,
    ToolFinished,
)
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.safety.redact import redact


class TerminalView:
    """Streams plain text, with one line per call; also the base class of `DrawnView`.

    `style` is a colour in rich, for subclasses that print colours.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._held = ""
        self._open_line = False
        self._closed = False

    def __call__(self, event: Event) -> None:
        self.transcript(event)
        self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._take(text)
            case RequestRetried(reason):
                self._complete()
                self._line(f"[{redact(reason)}; asking again]", style="yellow")
            case MessageAdded(message) if message.role == "assistant":
                self._complete(message.text)
            case ChildFinished(call_id, number):
                self._call_line(self.transcript.call(call_id).children[number].line())
            case ToolFinished(call):
                self._call_line(self.transcript.call(call.id).line())
            case _:
                pass

    def note(self, markdown: str) -> None:
        spelled = markdown.replace("%hermes ", self.transcript.spelled)
        self._line(plain_text(spelled), style="cyan")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        reason = self.transcript.ending.reason if self.transcript.ending else ""
        spelled = self.transcript.spelled
        lines = [line.replace("%hermes ", spelled) for line in self.transcript.ending_lines()]
        # A failure's text follows as the cell's error, with advice.
        for line in lines[1:] if reason == "failed" else lines:
            calm = reason in ("answered", "interrupted")
            self._line(line, style="dim" if calm else "red")

    def _take(self, text: str) -> None:
        """Print more of the answer, in whole words: a secret split in two would not be redacted."""
        self._held += text
        self._print_buffered(max(self._held.rfind(" "), self._held.rfind("\n")) + 1)

    def _complete(self, whole: str = "") -> None:  # noqa: ARG002 - for subclasses
        """Print the rest of a completed text; `whole` is the entire text."""
        self._print_buffered(len(self._held))
        if self._open_line:
            self._write("\n")
            self._open_line = False

    def _call_line(self, markdown: str) -> None:
        self._line(f"  {plain_text(markdown)}", style="dim")

    def _line(self, text: str, *, style: str) -> None:  # noqa: ARG002 - no colours here
        self._complete()
        self._write(f"{text}\n")

    def _print_buffered(self, length: int) -> None:
        said, self._held = self._held[:length], self._held[length:]
        if said:
            self._write(visible(redact(said), lines=True))
            self._open_line = True

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
