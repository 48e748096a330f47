"""Display a running turn in a notebook cell or a headless run.

A view receives a turn's events and is closed when the turn ends. In a cell, one Markdown display is
updated at most every `INTERVAL` seconds instead of for every token (500 individual updates would
cost 911 kB and 625 ms of CPU, throttled ones 38 kB). Without stdin (nbclient, nbval, papermill)
there is a single display at the end, because these tools don't support updates.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from collections.abc import Mapping
from secrets import token_hex
from typing import Protocol, TextIO

from hermes_nb.core.events import Event, TextDelta, ToolStarted, TurnEnded
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.notebook.display.transcript import ANSWER, Transcript
from hermes_nb.notebook.shell import Foreign, publisher_of
from hermes_nb.safety.markup import escape


def can_draw(file: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a stream is a terminal with cursor control and enabled colours."""
    if environment.get("NO_COLOR") or environment.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    return file.isatty()


def show(bundle: Mapping[str, str], metadata: Mapping[str, object] | None = None) -> None:
    """Display a MIME bundle with plain text and trusted Markdown."""
    if can_draw(sys.stdout):
        from hermes_nb.notebook.display.terminal_markdown import draw  # imports rich

        draw(bundle["text/markdown"], sys.stdout)
    else:
        from IPython.display import display

        display(dict(bundle), raw=True, metadata=dict(metadata or {}))


INTERVAL = 0.12
"""Seconds between updates; grows with the text, because every update sends all of it."""
CHARACTERS_PER_SECOND = 40_000
"""Number of text characters that add one second to the interval."""
EARLY = 1.0
"""Minimum seconds between updates that do not wait for the interval."""
STILL_RUNNING = "(the turn was still running when this was saved)"
TICK = 1.0
"""Seconds between clock updates when there are no new events."""
LIVE_EVERY = 0.5
"""Seconds between checks for new output from running code, and for a pending update."""
LATE = 1.5
"""Seconds without an update after which the event loop is considered blocked."""


class TurnView(Protocol):
    """Displays one turn."""

    transcript: Transcript
    """The content to display."""

    def __call__(self, event: Event) -> None: ...

    def note(self, markdown: str) -> None:
        """Display a line that does not come from the model, as Markdown."""
        ...

    def close(self) -> None:
        """Display the final state; a second call does nothing."""
        ...


def bundle(transcript: Transcript, *, running: bool) -> dict[str, str]:
    """Return a turn's MIME bundle; if images follow it, the status line is separate."""
    if running:
        # Each update sends everything, and front ends that support updates don't show plain text.
        return {"text/markdown": transcript.running(), "text/plain": STILL_RUNNING}
    # A failure's text follows as the error of a cell that waits for it, so it is omitted here.
    status = not transcript.drew
    markdown = transcript.finished(failure=transcript.beside, room=ANSWER, page=True, status=status)
    return {"text/markdown": markdown, "text/plain": transcript.plain(room=ANSWER, status=status)}


def footer(transcript: Transcript) -> dict[str, str]:
    """Return the MIME bundle of the status line below a turn's images."""
    marked = transcript.footer()
    return {"text/markdown": marked, "text/plain": plain_text(marked)}


class FinalView:
    """Displays a turn once, after it has ended."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._closed = False

    def __call__(self, event: Event) -> None:
        self.transcript(event)

    def note(self, markdown: str) -> None:
        """Store a line for the final display."""
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
    """Displays only notes and a final status line, because the answer is bound to a variable."""

    def _display(self) -> None:
        lines, notes = self.transcript.ending_lines()[-1:], self.transcript.notes
        marked = "\n\n".join([*notes, *(f"<sub>{escape(line)}</sub>" for line in lines)])
        plain = "\n".join([*map(plain_text, notes), *lines])
        show({"text/markdown": marked, "text/plain": plain}, self.transcript.metadata)


class CellView:
    """A display that is updated while the turn is running.

    Code that a call runs in this thread blocks the event loop, possibly for minutes. A second
    thread then updates the clock and the code's output. It cannot do so for code that never
    releases the GIL.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._one = threading.RLock()
        self._clock: threading.Thread | None = None
        self._over = threading.Event()
        self._display_id = ""
        self._shown = time.monotonic()  # an empty view is not displayed before the first words
        self._early = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Record an event and schedule an update.

        The beginning of an answer is displayed immediately, and so is the first of several parallel
        calls, because it may run code that blocks the event loop and its timers. In a turn with
        many fast calls, most of them wait for the next update.
        """
        with self._one:
            busy, answer = self.transcript.running_call, self.transcript.answer
            self.transcript(event)
        if isinstance(event, TextDelta) and not answer:
            self._update_at_once()
        elif isinstance(event, ToolStarted) and not busy:
            self._update_at_once()
            if self._clock is None:
                # With this context, its updates are sent to the running cell.
                run, turn = contextvars.copy_context().run, (self._keep_time,)
                self._clock = threading.Thread(
                    target=run, args=turn, name="hermes-clock", daemon=True
                )
                self._clock.start()
        if not isinstance(event, TurnEnded):
            self._schedule()

    def begin(self) -> None:
        """Display the turn at once and update it from now on, even before its first event."""
        self._update(running=True)
        self._schedule()

    def note(self, markdown: str) -> None:
        """Display a line immediately."""
        self.transcript.notes.append(markdown)
        self._update(running=True)

    def refresh(self) -> None:
        """Update a displayed, running turn; can be called from any thread."""
        with self._one:
            if self._display_id and not self._closed:
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
                late = LIVE_EVERY if self._due else LATE
                if new != shown or time.monotonic() - self._shown > late:
                    shown, self._due = new, False
                    self._update(running=True)

    def _update_at_once(self) -> None:
        """Update, unless both the last update and the last early one are recent."""
        now = time.monotonic()
        if now - self._shown < INTERVAL:
            if now - self._early < EARLY:
                return
            self._early = now
        self._cancel()
        self._update(running=True)
        sys.stdout.flush()  # lets the kernel's IO thread send it before this thread continues

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
        from IPython.core.getipython import get_ipython

        with self._one:
            data = bundle(self.transcript, running=running)
            self._shown = time.monotonic()
            # Read by the page: *Stop* is offered below the output of an ended cell, too.
            beside = running and self.transcript.beside
            marks = {} if running else self.transcript.metadata
            if beside:
                marks = {"hermes_beside": self.transcript.state() or "running"}
            again = bool(self._display_id)
            self._display_id = self._display_id or token_hex(16)
            shell: Foreign = get_ipython()
            publisher = publisher_of(shell) if self.transcript.beside else shell.display_pub
            publisher.publish(
                data=data,
                metadata=marks,
                transient={"display_id": self._display_id},
                update=again,
            )
