"""What stands in for the streams and the display publisher while code runs nested.

What is written after the capture has closed, or in a forked child, goes where it would have gone
without it: a logging handler keeps the stream it was given.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_nb.notebook.running.collector import Collector
from hermes_nb.notebook.values.kinds import Foreign

_DRAIN = 0.2
"""Seconds to wait for what subprocesses wrote; it is there within one or two milliseconds."""


class Stream(io.TextIOBase):
    """What stands in for `sys.stdout` or `sys.stderr`; outlives the capture in logging handlers."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, collector: Collector, name: str, outer: Foreign) -> None:
        super().__init__()
        self.name = f"<{name}>"
        self._stream = name
        self._collector = collector
        self._outer = outer
        self._forward = getattr(outer, "write", None)

    def __getattr__(self, name: str) -> Foreign:
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

    def write(self, text: object) -> int:
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

    def __init__(self, collector: Collector, outer: Foreign) -> None:
        self._collector = collector
        self._outer = outer

    def __getattr__(self, name: str) -> Foreign:
        """Look up the rest (`set_parent`, `is_publishing`, hooks) in the real publisher."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._outer, name)

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_kwargs: object,
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


def drain(stream: Foreign) -> None:
    """Wait for what subprocesses wrote: a thread of ipykernel's reads it from a pipe."""
    pipe, reader = getattr(stream, "_fid", None), getattr(stream, "watch_fd_thread", None)
    if not isinstance(pipe, int) or reader is None:
        return
    until = time.monotonic() + _DRAIN
    while time.monotonic() < until and not _all_read(pipe, reader):
        time.sleep(0.0005)


def _all_read(pipe: int, reader: threading.Thread) -> bool:
    """Say whether the pipe is empty and its reader, done with what it read, waits for more."""
    import fcntl
    import termios

    waiting = bytearray(4)
    try:
        fcntl.ioctl(pipe, termios.FIONREAD, waiting)
        if any(waiting):
            return False
        call = Path(f"/proc/self/task/{reader.native_id}/syscall").read_text(encoding="ascii")
    except OSError:  # no such system, or it does not tell: two milliseconds are usually enough
        time.sleep(0.002)
        return True
    return call.split()[1:2] == [hex(pipe)]
