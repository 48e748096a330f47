"""A turn whose answer goes into a variable: all that is shown is how it ended."""

from __future__ import annotations

from hermes_nb.core.events import Event
from hermes_nb.notebook.display.showing import show
from hermes_nb.notebook.display.transcript import Transcript, plain_text
from hermes_nb.safety.markup import escape


class StatusView:
    """Shows one status line when the turn is over; notes stand above it."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        self.transcript(event)

    def note(self, markdown: str) -> None:
        """Keep a line for the end."""
        self.transcript.notes.append(markdown)

    def close(self) -> None:
        """Show the status line."""
        if self._closed:
            return
        self._closed = True
        lines = self.transcript.ending_lines()[-1:]
        data = {
            "text/markdown": "\n\n".join(
                [*self.transcript.notes, *(f"<sub>{escape(line)}</sub>" for line in lines)]
            ),
            "text/plain": "\n".join([*map(plain_text, self.transcript.notes), *lines]),
        }
        show(data)
