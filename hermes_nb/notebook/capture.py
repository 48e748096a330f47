"""Catching everything that user code shows, as nbformat outputs, within bounded memory.

Order is kept as a front end would show it: adjacent writes to one stream merge, displays stand
between them, `clear_output` and `update_display` act on what is there. What is written after the
capture has closed, or in a forked child, goes where it would have gone without it.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

Output = dict[str, Any]

HEAD = 5_000_000
"""Characters of stream text kept from the beginning of a run."""
TAIL = 5_000_000
"""Characters of stream text kept from its end; what lies between is counted and dropped."""
DISPLAYS = 64_000_000
"""Characters of displayed data kept; displays after that are counted and dropped."""
_ENTRY = 65_536
"""A stretch of one stream is kept in pieces of this size, so that its beginning can be dropped."""
_OVERHEAD = 256
_PENDING = 512
_NOTICE_EVERY = 0.2

_SURROGATES = re.compile("[\ud800-\udfff]")


class _Entry:
    """A piece of a stream, or one other output."""

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
        """Append text; short writes are joined now and then, as a string costs 50 bytes by itself."""
        self.pending.append(text)
        self.size += len(text)
        if len(self.pending) >= _PENDING:
            self.blocks.append("".join(self.pending))
            self.pending.clear()

    def text(self) -> str:
        """Return the text so far."""
        return "".join(self.blocks) + "".join(self.pending)


class Collector:
    """Collects outputs; any thread may write.

    `on_output(text)` hears of the latest text now and then (at most five times a second), on the
    thread that wrote it; what it raises is ignored.
    """

    def __init__(self, on_output: Callable[[str], None] | None = None) -> None:
        self._on_output = on_output
        self._noticed = 0.0
        # Reentrant: a finaliser may print while this very thread holds the lock.
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
        """Whether what is shown now belongs here: not after the end, not in a forked child."""
        return self._open and os.getpid() == self._pid

    def close(self) -> None:
        """Take nothing more."""
        self._open = False

    def write(self, name: str, text: str) -> None:
        """Add text to the stream `name`."""
        if not text:
            return
        with self._lock:
            self._clear_if_asked()
            if not self._tail and self._head_size < HEAD:
                first, text = text[: HEAD - self._head_size], text[HEAD - self._head_size :]
                self._head_size += self._append(self._head, name, first)
                latest = first
            if text:
                self._dropped += max(0, len(text) - TAIL)
                latest = text = text[-TAIL:]
                self._tail_size += self._append(self._tail, name, text)
                self._shed()
        self._notice(latest)

    def display(
        self, data: Mapping[str, Any], metadata: Any = None, display_id: str | None = None
    ) -> None:
        """Add a `display_data` output."""
        output = {"output_type": "display_data", **_bundle(data, metadata)}
        self._add(output, display_id)

    def result(self, data: Mapping[str, Any], metadata: Any = None) -> None:
        """Add an `execute_result` output; nested code has no execution count of its own."""
        output = {"output_type": "execute_result", "execution_count": None}
        self._add({**output, **_bundle(data, metadata)})

    def error(self, ename: str, evalue: str, traceback: list[str]) -> None:
        """Add an `error` output."""
        lines = [_clean(line) for line in traceback]
        self._add(
            {
                "output_type": "error",
                "ename": _clean(ename),
                "evalue": _clean(evalue),
                "traceback": lines,
            }
        )

    def last_error(self) -> Output | None:
        """Return the last `error` output, to be read or changed."""
        with self._lock:
            outputs = [e.output for e in (*self._head, *self._tail) if e.output]
        return next((o for o in reversed(outputs) if o["output_type"] == "error"), None)

    def update(self, display_id: str, data: Mapping[str, Any], metadata: Any = None) -> bool:
        """Change the displays of that id; return whether there were any."""
        with self._lock:
            found = [
                e for e in (*self._head, *self._tail) if e.output and e.display_id == display_id
            ]
            for entry in found:
                assert entry.output is not None  # noqa: S101 - chosen so above
                entry.output.update(_bundle(data, metadata))
        return bool(found)

    def clear(self, *, wait: bool = False) -> None:
        """Forget what was shown so far; with `wait` only when the next output comes."""
        with self._lock:
            self._clear_next = wait
            if not wait:
                self._reset()

    def outputs(self) -> list[Output]:
        """Return what was shown, as nbformat outputs."""
        with self._lock:
            outputs = list(_merged([*self._head, *self._gap(), *self._tail]))
            if self._displays_dropped:
                note = f"[... {self._displays_dropped:,} displays dropped ...]"
                outputs.append(
                    {"output_type": "display_data", "data": {"text/plain": note}, "metadata": {}}
                )
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
        self._notice(str(output.get("data", {}).get("text/plain", ""))[:200])

    def _append(self, entries: list[_Entry] | deque[_Entry], name: str, text: str) -> int:
        """Add stream text to the last entry or new ones; return what that costs."""
        cost = len(text)
        for start in range(0, len(text), _ENTRY):
            last = entries[-1] if entries else None
            if last is None or last.name != name or last.size >= _ENTRY:
                last = _Entry(name=name)
                entries.append(last)
                cost += _OVERHEAD
            last.add(text[start : start + _ENTRY])
        return cost

    def _gap(self) -> Iterator[_Entry]:
        """Yield the note that stands where text was dropped."""
        if self._dropped:
            gap = _Entry(name=(self._tail[0].name if self._tail else "") or "stdout")
            gap.add(f"\n[... {self._dropped:,} characters of output dropped ...]\n")
            yield gap

    def _shed(self) -> None:
        """Drop the tail's oldest text while there is too much; displays move to the head."""
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

    def _notice(self, text: str) -> None:
        if self._on_output is None or not text.strip():
            return
        now = time.monotonic()
        if now - self._noticed >= _NOTICE_EVERY:
            self._noticed = now
            with suppress(Exception):
                self._on_output(text[-500:])


class Stream(io.TextIOBase):
    """What stands in for `sys.stdout` or `sys.stderr`; outlives the capture in logging handlers."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, collector: Collector, name: str, outer: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.name = f"<{name}>"
        self._stream = name
        self._collector = collector
        self._outer = outer
        self._forward = getattr(outer, "write", None)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Look up what a stream does not have in the one it stands for (`set_parent`, `buffer`)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._outer, name)

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False: nobody sees cursor movements here."""
        return False

    def fileno(self) -> int:
        """Return the descriptor of the stream this one stands for."""
        return int(self._outer.fileno())

    def write(self, text: str) -> int:
        """Write to the capture, or to where the text would have gone."""
        if not isinstance(text, str):
            message = f"write() argument must be str, not {type(text).__name__}"
            raise TypeError(message)
        if self._collector.takes:
            self._collector.write(self._stream, text)
        elif self._forward is not None:
            self._forward(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream this one stands for, once that is where text goes."""
        if not self._collector.takes and self._outer is not None:
            self._outer.flush()

    def close(self) -> None:
        """Do nothing: code that closes stdout must not silence what comes after it."""


class Publisher:
    """What stands in for the shell's display publisher."""

    def __init__(self, collector: Collector, outer: Any) -> None:  # noqa: ANN401
        self._collector = collector
        self._outer = outer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Look up the rest (`set_parent`, `is_publishing`, hooks) in the real publisher."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._outer, name)

    def publish(  # noqa: D417
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Take a display; an update of something shown elsewhere goes there."""
        display_id = (transient or {}).get("display_id")
        if self._collector.takes:
            if not update:
                self._collector.display(data, metadata, display_id)
                return
            if display_id and self._collector.update(display_id, data, metadata):
                return
        self._outer.publish(data=data, metadata=metadata, transient=transient, update=update)

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        """Forget what was shown so far."""
        if self._collector.takes:
            self._collector.clear(wait=wait)
        else:
            self._outer.clear_output(wait)


def _merged(entries: Iterable[_Entry]) -> Iterator[Output]:
    """Yield entries as outputs, each stretch of one stream as one."""
    for (name, _), group in groupby(entries, key=lambda e: (e.name, not e.name and id(e))):
        if name:
            text = _clean("".join(entry.text() for entry in group))
            yield {"output_type": "stream", "name": name, "text": text}
        else:
            yield from (entry.output for entry in group if entry.output is not None)


def _bundle(data: Mapping[str, Any], metadata: Any) -> Output:
    """Return a MIME bundle that JSON can carry: bytes as base64, everything else as text."""
    clean = {str(mime): _content(str(mime), value) for mime, value in data.items()}
    return {"data": clean, "metadata": _json(metadata or {})}


def _content(mime: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, str):
        return _clean(value)
    if mime == "application/json" or mime.endswith("+json"):
        return _json(value)
    return _clean(str(value))


def _json(value: Any, depth: int = 0) -> Any:
    """Return `value` as JSON can carry it; NaN and infinities become None, strangers their text."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return _clean(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping() if depth < 100:
            return {_clean(str(k)): _json(v, depth + 1) for k, v in value.items()}
        case list() | tuple() if depth < 100:
            return [_json(item, depth + 1) for item in value]
    return _clean(str(value)[:1000])


def _clean(text: str) -> str:
    """Return text that UTF-8 can carry."""
    return _SURROGATES.sub("\ufffd", text)
