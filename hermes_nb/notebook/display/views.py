"""Shows a running turn where it runs: a notebook cell, a headless run, a terminal.

A view is an event sink with a beginning and an end. In a cell one Markdown display is updated at
most every `INTERVAL` seconds, never once a token (500 tokens one by one cost 911 kB and 625 ms of
CPU, throttled 38 kB). Where stdin is not allowed (nbclient, nbval, papermill) there are no
updates, which those tools do not understand: one display at the end. In a terminal, text streams.

Below a turn its user sees what scratch code draws, of which the model reads only that it is there.
Pictures and what front ends draw from data are shown; tables and printed text are in the call's
fold, and HTML of unknown origin has no business in a turn's output.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO

from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    ChildFinished,
    Event,
    MessageAdded,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
)
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.notebook.display.transcript import ANSWER, Transcript
from hermes_nb.notebook.shell import Foreign, Shell
from hermes_nb.safety.markup import escape
from hermes_nb.safety.redact import redact


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


class View(Protocol):
    """Shows one turn."""

    transcript: Transcript

    def __call__(self, event: Event) -> None: ...

    def note(self, markdown: str) -> None:
        """Show a line that is ours, not the model's."""
        ...

    def close(self) -> None:
        """Show the final state; a second call does nothing."""
        ...


def has_kernel(shell: Shell) -> bool:
    """Say whether the shell runs in a Jupyter kernel."""
    return getattr(shell, "kernel", None) is not None


def can_ask(shell: Shell) -> bool:
    """Say whether somebody can answer `input()` in the running cell."""
    if not has_kernel(shell):
        return sys.stdin is not None and sys.stdin.isatty()
    return bool(getattr(shell.kernel, "_allow_stdin", False))


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


class TerminalView:
    """Plain text as it streams, and a line a call; a view that draws shows the same by its means.

    `style` is a colour of rich's, for those that have colours.
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
        # A failure's text follows as the cell's error, and with what to do about it.
        for line in lines[1:] if reason == "failed" else lines:
            calm = reason in ("answered", "interrupted")
            self._line(line, style="dim" if calm else "red")

    def _take(self, text: str) -> None:
        """Print more of the answer, in whole words: half a secret is not known for one."""
        self._held += text
        self._say(max(self._held.rfind(" "), self._held.rfind("\n")) + 1)

    def _complete(self, whole: str = "") -> None:  # noqa: ARG002 - for a view that prints blocks
        """Print what is left of a text that is complete; `whole` is all of it."""
        self._say(len(self._held))
        if self._open_line:
            self._write("\n")
            self._open_line = False

    def _call_line(self, markdown: str) -> None:
        self._line(f"  {plain_text(markdown)}", style="dim")

    def _line(self, text: str, *, style: str) -> None:  # noqa: ARG002 - no colours here
        self._complete()
        self._write(f"{text}\n")

    def _say(self, length: int) -> None:
        said, self._held = self._held[:length], self._held[length:]
        if said:
            self._write(visible(redact(said), lines=True))
            self._open_line = True

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


PICTURES = ("image/png", "image/jpeg", "image/gif")
CHARTS = ("application/vnd.plotly.", "application/vnd.vega.", "application/vnd.vegalite.")
"""Beginnings of MIME types whose data a front end draws by itself."""
MOST = 8
"""Pictures of one call; of more, the last ones."""
LARGEST = 5_000_000
"""Characters of a picture: all that is shown is saved with the notebook."""


def drawings(outputs: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Return the MIME bundles of the pictures among some outputs."""
    bundles = []
    for output in outputs:
        data = output.get("data") or {}
        if drawn := {mime: value for mime, value in data.items() if _fits(mime, value)}:
            told = one_line(visible(str(data.get("text/plain", "a picture"))), 200)
            bundles.append({**drawn, "text/plain": told})
    return bundles[-MOST:]


def is_drawing(data: Mapping[str, Json]) -> bool:
    """Say whether a MIME bundle has something drawn in it."""
    return any(_fits(mime, value) for mime, value in data.items())


def show_drawings(shell: Shell, outputs: Sequence[Mapping[str, Json]]) -> None:
    """Display the pictures among some outputs, below what the running cell shows already."""
    if not has_kernel(shell):
        return
    from IPython.display import display

    for bundle in drawings(outputs):
        display(bundle, raw=True)


def _fits(mime: str, value: object) -> bool:
    if mime in PICTURES:
        return isinstance(value, str) and len(value) <= LARGEST
    return mime.startswith(CHARTS) and len(str(value)) <= LARGEST
