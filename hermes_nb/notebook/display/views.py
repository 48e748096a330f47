"""Shows a running turn where it runs: in a notebook cell or a headless run.

A view is an event sink with a beginning and an end. In a cell one Markdown display is updated at
most every `INTERVAL` seconds, never once a token (500 tokens one by one cost 911 kB and 625 ms of
CPU, throttled 38 kB). Where stdin is not allowed (nbclient, nbval, papermill) there are no
updates, which those tools do not understand: one display at the end.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from hermes_nb.core.events import Event, TextDelta, ToolStarted, TurnEnded
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.notebook.display.transcript import ANSWER, Transcript
from hermes_nb.notebook.shell import Foreign
from hermes_nb.safety.markup import escape


def can_draw(file: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether a stream is a terminal that draws, and its user wants colours."""
    if environment.get("NO_COLOR") or environment.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    return file.isatty()


def show(bundle: Mapping[str, str], metadata: Mapping[str, object] | None = None) -> None:
    """Show a MIME bundle that has Markdown, which we wrote, and plain text."""
    if can_draw(sys.stdout):
        from hermes_nb.notebook.display.terminal_markdown import draw  # and with it rich

        draw(bundle["text/markdown"], sys.stdout)
    else:
        from IPython.display import display

        display(dict(bundle), raw=True, metadata=dict(metadata or {}))


INTERVAL = 0.12
"""Seconds between two updates; it grows with the text, as every update carries all of it."""
CHARACTERS_PER_SECOND = 40_000
"""So many characters of text stretch the interval by a second."""
STILL_RUNNING = "(the turn was still running when this was saved)"
TICK = 1.0
"""Seconds between updates of a quiet turn, so that its clock runs."""
LIVE_EVERY = 0.5
"""Seconds between two looks at what running code has printed."""
LATE = 1.5
"""Seconds without an update after which the event loop is taken to be held up."""


class TurnView(Protocol):
    """Shows one turn."""

    transcript: Transcript

    def __call__(self, event: Event) -> None: ...

    def note(self, markdown: str) -> None:
        """Show a line that is ours, not the model's."""
        ...

    def close(self) -> None:
        """Show the final state; a second call does nothing."""
        ...


def bundle(transcript: Transcript, *, running: bool) -> dict[str, str]:
    """Return the MIME bundle of a turn's view; where it drew, its status line is another one."""
    if running:
        # Every update is sent whole, and no front end that takes updates shows the plain text.
        return {"text/markdown": transcript.running(), "text/plain": STILL_RUNNING}
    # A failure's text follows as the cell's error; saying it twice would not make it clearer.
    status = not transcript.drew
    markdown = transcript.finished(failure=False, room=ANSWER, page=True, status=status)
    return {"text/markdown": markdown, "text/plain": transcript.plain(room=ANSWER, status=status)}


def footer(transcript: Transcript) -> dict[str, str]:
    """Return the MIME bundle of the status line that stands below a turn's pictures."""
    marked = transcript.footer()
    return {"text/markdown": marked, "text/plain": plain_text(marked)}


class FinalView:
    """One display when the turn is over."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._closed = False

    def __call__(self, event: Event) -> None:
        self.transcript(event)

    def note(self, markdown: str) -> None:
        """Keep a line for the final display."""
        self.transcript.notes.append(markdown)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._display()

    def _display(self) -> None:
        from IPython.display import display

        shown = bundle(self.transcript, running=False)
        display(shown, raw=True, metadata=self.transcript.metadata)


class StatusView(FinalView):
    """One status line when the turn is over, notes above it: its answer goes into a variable."""

    def _display(self) -> None:
        lines, notes = self.transcript.ending_lines()[-1:], self.transcript.notes
        marked = "\n\n".join([*notes, *(f"<sub>{escape(line)}</sub>" for line in lines)])
        plain = "\n".join([*map(plain_text, notes), *lines])
        show({"text/markdown": marked, "text/plain": plain}, self.transcript.metadata)


class CellView:
    """One display that is updated while the turn runs.

    Code that a call runs on this thread holds up the event loop, for minutes if it trains a model.
    A thread then keeps the clock going and shows what it prints, so that what works does not look
    dead. Only code that never lets other threads run looks so.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._one = threading.RLock()
        self._clock: threading.Thread | None = None
        self._over = threading.Event()
        self._handle: Foreign = None
        self._shown = time.monotonic()  # the first words mostly come before an empty view would
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Take in an event and see to it that it is shown soon.

        Shown at once are an answer's beginning, which somebody waits for, and the first of some
        calls: it may run code that holds up this event loop, and with it every timer.
        """
        with self._one:
            busy, answer = self.transcript.running_call, self.transcript.answer
            self.transcript(event)
        if isinstance(event, TextDelta) and not answer:
            self._cancel()
            self._update(running=True)
            sys.stdout.flush()  # lets the kernel's thread send it before this one goes on
        elif isinstance(event, ToolStarted) and not busy:
            self._cancel()
            self._update(running=True)
            if self._clock is None:
                # With this context, its updates belong to the cell that runs now.
                run, turn = contextvars.copy_context().run, (self._keep_time,)
                self._clock = threading.Thread(
                    target=run, args=turn, name="hermes-clock", daemon=True
                )
                self._clock.start()
        if not isinstance(event, TurnEnded):
            self._schedule()

    def note(self, markdown: str) -> None:
        """Show a line at once."""
        self.transcript.notes.append(markdown)
        self._update(running=True)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._over.set()
        self._cancel()
        self._update(running=False)
        if self.transcript.drew:
            from IPython.display import display

            display(footer(self.transcript), raw=True)

    def _keep_time(self) -> None:
        shown = None
        while not self._over.wait(LIVE_EVERY):
            with self._one:
                if self._closed or not self.transcript.running_call:
                    continue
                new = self.transcript.live()
                if new != shown or time.monotonic() - self._shown > LATE:
                    shown = new
                    self._update(running=True)

    def _schedule(self) -> None:
        if self._closed or self._due:
            return
        self._cancel()
        self._due = True
        interval = INTERVAL + len(self.transcript.answer) / CHARACTERS_PER_SECOND
        wait = self._shown + interval - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(wait, 0.0), self._tick)

    def _tick(self) -> None:
        self._cancel()
        if self._closed:
            return
        self._update(running=True)
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _cancel(self) -> None:
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _update(self, *, running: bool) -> None:
        from IPython.display import display

        with self._one:
            data = bundle(self.transcript, running=running)
            self._shown = time.monotonic()
            if self._handle is None:
                self._handle = display(data, raw=True, display_id=True)
            else:
                self._handle.update(data, raw=True)
