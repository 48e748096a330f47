"""Display a turn in a terminal with cursor control: print final parts, redraw the rest.

Finished blocks of the answer, finished calls and notes are printed once and scroll away like any
output. Only the current block, the running calls and a status line are redrawn, never more lines
than the screen has. A separate thread draws, even while code blocks the event loop. It pauses while
the user is asked a question.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from hermes_nb.core.escapes import readable, visible
from hermes_nb.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ReasoningDelta,
    TurnEnded,
    TurnStarted,
)
from hermes_nb.core.text import one_line
from hermes_nb.notebook.display.plain_terminal import TerminalView
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.notebook.display.terminal_markdown import (
    Lines,
    blocks,
    console,
    drawn,
    finished,
    latest,
    rendered,
)
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.safety.redact import redact

A_SECOND = 8
"""Maximum number of redraws per second."""
IDLE = 10
"""Pause after drawing the text, as a multiple of the drawing time; limits it to a tenth of a
core."""
GROWTH = 1.05
"""Growth of a block that triggers another search for its end; each search reads the whole block."""
MARKS = {"✓": "green", "✗": "red", "⊘": "yellow", "■": "yellow", "◌": "cyan", "‖": "yellow"}
THOUGHT = 400
"""Number of characters of the latest reasoning used for its line."""


class DrawnView(TerminalView):
    """Displays one turn; with `quiet`, only after it has ended."""

    def __init__(
        self, transcript: Transcript, *, file: TextIO | None = None, quiet: bool = False
    ) -> None:
        super().__init__(transcript)
        self._console = console(file or sys.stdout)
        self._one = threading.RLock()
        self._live: Live | None = None
        self._quiet = quiet
        self._asked: set[str] = set()
        self._read = 0
        self._streamed = False
        self._reasoning = ""
        self._above = ""
        self._text: tuple[tuple[str, int, int], Lines] = (("", 0, 0), [])
        self._rest_until = 0.0

    def __call__(self, event: Event) -> None:
        with self._one:
            self.transcript(event)
            if not self._quiet:
                self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case TurnStarted():
                self._draw()
            case ApprovalAsked(call):
                self._asked.add(call.id)
                self._still()
            case ApprovalGiven(call_id):
                self._asked.discard(call_id)
                if not self._asked:
                    self._draw()
            case TurnEnded():
                self._still()
            case ReasoningDelta(text):
                self._reasoning = (self._reasoning + text)[-THOUGHT:]
            case _:
                super()._show(event)

    def note(self, markdown: str) -> None:
        with self._one:
            super().note(markdown)

    def close(self) -> None:
        with self._one:
            if not self._closed:
                self._still()
                self._complete(self.transcript.answer if self._quiet else "")
                super().close()

    def reprint(self) -> None:
        """Print a finished turn as it was printed while it ran."""
        with self._one:
            for note in self.transcript.notes:
                self.note(note)
            for call in self.transcript.calls:
                for line in call.lines():
                    self._call_line(line)
            self._quiet = True
            self.close()

    def _take(self, text: str) -> None:
        self._streamed = True
        self._held += text
        size = len(self._held)
        if "\n" not in text or size < self._read * GROWTH:
            return
        self._read = size
        if end := finished(self._held):
            complete, self._held, self._read = self._held[:end], self._held[end:], 0
            self._print_blocks(complete)

    def _complete(self, whole: str = "") -> None:
        rest = self._held if self._streamed else whole
        self._held, self._reasoning, self._streamed, self._read = "", "", False, 0
        self._print_blocks(rest)

    def _print_blocks(self, source: str) -> None:
        for block in blocks(readable(redact(source))):
            self._print(rendered(block), "block")

    def _call_line(self, markdown: str) -> None:
        self._print(_call(plain_text(markdown)), "line")

    def _line(self, text: str, *, style: str) -> None:
        self._print(Text(visible(text, lines=True), style), "line")

    def _print(self, shown: ConsoleRenderable, kind: str) -> None:
        """Print something final, with blank lines around each block."""
        lines = drawn(self._console, shown, self._console.width)
        apart = self._above and "block" in (kind, self._above)
        self._console.print(_Drawn([[], *lines] if apart else lines), end="", soft_wrap=True)
        self._above = kind

    def _draw(self) -> None:
        if self._live is None and not self._closed:
            self._live = live = Live(
                self, console=self._console, auto_refresh=False, transient=True
            )
            live.start(refresh=True)
            draw = self._keep_drawing
            threading.Thread(target=draw, args=(live,), name="hermes-screen", daemon=True).start()

    def _keep_drawing(self, live: Live) -> None:
        """Redraw while `live` is active; rich's own thread would draw between other prints."""
        while True:
            time.sleep(1 / A_SECOND)
            with self._one:
                if self._live is not live:
                    return
                live.refresh()

    def _still(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.update(_Drawn([]))
            live.stop()

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> RenderResult:
        """Render the live part; one column stays empty, so that no line wraps."""
        with self._one:  # the user's code may print with rich, which also redraws this
            yield _Drawn(self._growing(max(console.width - 1, 1), console.height))

    def _growing(self, width: int, height: int) -> Lines:
        self.transcript.update_live_output()
        running = [call for call in self.transcript.calls if not call.status]
        parts = [line for call in running for line in call.plain_lines()]
        planned = [_on_one_line(line, "") for line in self.transcript.plan_lines]
        foot = [*planned, *(_on_one_line(f"  {line}", "") for line in parts)]
        if self._reasoning and not self._held and not running:
            thought = visible(one_line(redact(self._reasoning), THOUGHT))
            foot.append(_on_one_line(thought, "dim italic"))
        foot.append(_on_one_line(self.transcript.status_line(), "dim"))
        below = [
            line
            for each in foot[-max(height - 2, 1) :]
            for line in drawn(self._console, each, width)
        ]
        above = self._text_lines(width, max(height - len(below) - 3, 1))
        gap: Lines = [[]]
        first = gap if self._above == "block" or (self._above and above) else []
        return [*first, *above, *(gap if above else []), *below]

    def _text_lines(self, width: int, room: int) -> Lines:
        """Return as many of the current text's last lines as fit."""
        began = time.monotonic()
        state = (self._held, width, room)
        (shown, *size), lines = self._text
        more = shown and self._held.startswith(shown) and size == [width, room]
        if self._text[0] == state or (more and began < self._rest_until):
            return lines
        lines = []
        for block in reversed(blocks(readable(redact(self._held)))):
            above = drawn(self._console, rendered(latest(block, room)), width)
            lines = [*above, [], *lines] if lines else above
            if len(lines) >= room:
                break
        self._text = (state, lines[-room:])
        self._rest_until = began + (1 + IDLE) * (time.monotonic() - began)
        return self._text[1]


class _Drawn:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            yield from line
            yield Segment.line()


def _on_one_line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _call(line: str) -> Text:
    text = Text(f"  {line}")
    mark, _, rest = line.lstrip("↳ ").partition(" ")
    start = len(text.plain) - len(rest) - len(mark) - 1
    text.stylize("dim")
    text.stylize(f"not dim {MARKS.get(mark, '')}", start, start + 1)
    if not line.startswith("↳"):
        text.stylize("not dim bold", start + 2, start + 2 + len(rest.partition(" ")[0]))
    return text
