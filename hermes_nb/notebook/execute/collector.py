"""Collect the output of running code as nbformat outputs, in bounded memory.

The order is the same as in a front end: consecutive writes to one stream are merged, displays
separate them, and clearing and updating change existing outputs.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import groupby
from weakref import WeakSet

from hermes_nb.core.messages import Json
from hermes_nb.core.text import latest
from hermes_nb.notebook.execute.network import in_thread_of_call
from hermes_nb.notebook.previews import bundle, well_formed
from hermes_nb.notebook.shell import turn_cell
from hermes_nb.safety.markup import clean_html

Output = dict[str, Json]

HEAD = 5_000_000
"""Characters of stream text to keep from the start of a run."""
TAIL = 5_000_000
"""Characters of stream text to keep from the end; any in between are dropped and counted."""
DISPLAYS = 64_000_000
"""Characters of displayed data to keep; later displays are dropped and counted."""
LATEST = 4_000
"""Characters from the end of the text to display while code is running."""
_ENTRY = 65_536
"""Maximum characters of an entry; long stream text is split, so that parts can be dropped."""
_OVERHEAD = 256
_PENDING = 512


class _Entry:
    """A chunk of a stream, or a single output of another kind."""

    __slots__ = ("blocks", "display_id", "name", "output", "pending", "size")

    def __init__(
        self, *, name: str = "", output: Output | None = None, display_id: str | None = None
    ) -> None:
        self.name = name
        self.output = output
        self.display_id = display_id
        self.size = _OVERHEAD
        self.blocks: list[str] = []
        self.pending: list[str] = []

    def add(self, text: str) -> None:
        """Append text; short writes are joined occasionally, as each string costs 50 bytes more."""
        self.pending.append(text)
        self.size += len(text)
        if len(self.pending) >= _PENDING:
            self.blocks.append("".join(self.pending))
            self.pending.clear()

    def text(self) -> str:
        return "".join(self.blocks) + "".join(self.pending)


_LOADS_NOTHING = frozenset({"text/plain", "image/png", "image/jpeg", "image/gif"})
"""MIME types that a page displays without loading anything."""


class OutputCollector:
    """Collects a run's outputs; any thread may write.

    `cell` is the cell of the run's turn. With `offline`, displays cannot make the page load
    anything from the network.
    """

    def __init__(self, *, offline: bool = False) -> None:
        self.cell = turn_cell.get()
        self._offline = offline
        # Reentrant: a finaliser may print while the same thread holds the lock.
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._open = True
        self._clear_next = False
        self._reset()

    def _reset(self) -> None:
        self._head: list[_Entry] = []
        self._tail: deque[_Entry] = deque()
        self._head_size = self._tail_size = self._dropped = 0
        self._display_size = self._displays_dropped = 0

    @property
    def takes(self) -> bool:
        """Whether output can be added: not after the run has ended, and not in a forked child."""
        return self._open and os.getpid() == self._pid

    def close(self) -> None:
        """End the run; later output is added to the enclosing run, if any."""
        self._open = False
        if self in _collectors:
            _collectors.remove(self)

    def write(self, name: str, text: str) -> None:
        if not text:
            return
        with self._lock:
            self._clear_if_asked()
            rest = text
            if not self._tail and self._head_size < HEAD:
                first, rest = text[: HEAD - self._head_size], text[HEAD - self._head_size :]
                self._head_size += _append(self._head, name, first)
            if rest:
                self._dropped += max(0, len(rest) - TAIL)
                self._tail_size += _append(self._tail, name, rest[-TAIL:])
                self._shed()

    def display(
        self, data: Mapping[str, Json], metadata: object = None, display_id: str | None = None
    ) -> None:
        output = {"output_type": "display_data", **bundle(self.kept(data), metadata)}
        self._add(output, display_id)

    def result(self, data: Mapping[str, Json], metadata: object = None) -> None:
        """Add an `execute_result` output; nested code has no execution count."""
        output = {"output_type": "execute_result", "execution_count": None}
        self._add({**output, **bundle(self.kept(data), metadata)})

    def kept(self, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the part of a MIME bundle that is displayed.

        An address in an interactive chart, a widget or HTML can carry data out of the kernel, as
        the page fetches it. Therefore `offline` only keeps text, images and plain HTML.
        """
        if not self._offline:
            return data
        kept = {mime: value for mime, value in data.items() if mime in _LOADS_NOTHING}
        if isinstance(page := data.get("text/html"), str):
            kept["text/html"] = clean_html(page)
        return kept

    def error(self, ename: str, evalue: str, traceback: list[str]) -> None:
        told: Output = {"ename": well_formed(ename), "evalue": well_formed(evalue)}
        told["traceback"] = [well_formed(line) for line in traceback]
        self._add({"output_type": "error", **told})

    def last_error(self) -> Output | None:
        """Return the last `error` output, which the caller may change; None if there is none."""
        with self._lock:
            outputs = [e.output for e in (*self._head, *self._tail) if e.output]
        return next((o for o in reversed(outputs) if o["output_type"] == "error"), None)

    def update(self, display_id: str, data: Mapping[str, Json], metadata: object = None) -> bool:
        """Update the displays with this id; return whether there were any."""
        with self._lock:
            shown = [e.output for e in (*self._head, *self._tail) if e.display_id == display_id]
            found = [output for output in shown if output is not None]
            for output in found:
                output.update(bundle(self.kept(data), metadata))
        return bool(found)

    def clear(self, *, wait: bool = False) -> None:
        """Delete all outputs; with `wait`, only when the next output is added."""
        with self._lock:
            self._clear_next = wait
            if not wait:
                self._reset()

    def latest(self) -> str:
        """Return the end of the text that was written so far."""
        text = ""
        with self._lock:
            for entry in reversed((*self._head, *self._tail)):
                text = entry.text() + text
                if len(text) > LATEST:
                    break
        return latest(text, LATEST)

    def outputs(self) -> list[Output]:
        with self._lock:
            outputs = list(_merged([*self._head, *self._gap(), *self._tail]))
            if self._displays_dropped:
                note = {"text/plain": f"[... {self._displays_dropped:,} displays dropped ...]"}
                outputs.append({"output_type": "display_data", "data": note, "metadata": {}})
            return outputs

    def _add(self, output: Output, display_id: str | None = None) -> None:
        with self._lock:
            self._clear_if_asked()
            size = sum(len(v) for v in output.get("data", {}).values() if isinstance(v, str))
            if self._display_size + size > DISPLAYS:
                self._displays_dropped += 1
                return
            self._display_size += size + _OVERHEAD
            entry = _Entry(output=output, display_id=display_id)
            (self._tail if self._tail else self._head).append(entry)

    def _gap(self) -> Iterator[_Entry]:
        if self._dropped:
            gap = _Entry(name=(self._tail[0].name if self._tail else "") or "stdout")
            gap.add(f"\n[... {self._dropped:,} characters of output dropped ...]\n")
            yield gap

    def _shed(self) -> None:
        """Drop the oldest text while the tail is too long; displays in it move to the head."""
        while self._tail_size > TAIL + _ENTRY and len(self._tail) > 1:
            entry = self._tail.popleft()
            if entry.output is not None:
                self._head.append(entry)
                continue
            self._tail_size -= entry.size
            self._dropped += entry.size - _OVERHEAD

    def _clear_if_asked(self) -> None:
        if self._clear_next:
            self._clear_next = False
            self._reset()


current_run: ContextVar[OutputCollector | None] = ContextVar("hermes_nb_nested_run", default=None)
"""The nested run to which the current code belongs."""
_collectors: list[OutputCollector] = []
"""The open collectors, innermost last."""
_readers: WeakSet[threading.Thread] = WeakSet()
"""ipykernel threads that forward subprocess output."""


def collecting() -> OutputCollector | None:
    """Return the collector for the calling code's output; None for the user's code.

    A run's code is recognised by its context variable; a thread belongs to the run that started it.
    A thread that outlives its run (as in a pool) is assigned to the currently open run.
    """
    run = current_run.get()
    if run is not None and run.takes:
        return run
    if run is None and threading.current_thread() not in _readers and not in_thread_of_call():
        return None
    return next((each for each in reversed(_collectors) if each.takes), None)


def opened(collector: OutputCollector) -> None:
    """Register a collector, which then receives output from threads started by the agent's code."""
    _collectors.append(collector)


def collect_from(reader: threading.Thread) -> None:
    """Attribute output that `reader` forwards to the agent's code while such code is running."""
    _readers.add(reader)


def _append(entries: list[_Entry] | deque[_Entry], name: str, text: str) -> int:
    """Add text to the last entry if it fits, otherwise to new entries; return the added size."""
    last = entries[-1] if entries else None
    if last is not None and last.name == name and last.size + len(text) <= _ENTRY:
        last.add(text)
        return len(text)
    cost = 0
    for start in range(0, len(text), _ENTRY):
        entry = _Entry(name=name)
        entry.add(text[start : start + _ENTRY])
        entries.append(entry)
        cost += entry.size
    return cost


def _merged(entries: Iterable[_Entry]) -> Iterator[Output]:
    for (name, _), group in groupby(entries, key=lambda e: (e.name, not e.name and id(e))):
        if name:
            text = well_formed("".join(entry.text() for entry in group))
            yield {"output_type": "stream", "name": name, "text": text}
        else:
            yield from (entry.output for entry in group if entry.output is not None)
