"""Capture the output of a nested run, and restore the state of IPython and the streams afterwards.

A nested run is code that the agent runs while a cell is running. `undisturbed` restores what a
nested `run_cell` changes, and `captured` intercepts every route by which its output could reach the
front end. Output goes to its usual destination if it is written after the capture has ended (for
example by a logging handler, which keeps its stream), by a forked child, or by code that is not the
agent's (such as one of the user's threads).
"""

from __future__ import annotations

import inspect
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from hermes_nb.core.messages import Json
from hermes_nb.core.text import head_tail
from hermes_nb.notebook.execute.collector import OutputCollector, collect_from, collecting, opened
from hermes_nb.notebook.shell import Foreign, Shell

_DRAIN = 0.2
"""Maximum seconds to wait for subprocess output, which usually takes 1 or 2 ms."""


class Stream(io.TextIOBase):
    """A proxy for `sys.stdout` or `sys.stderr` that logging handlers may use after the capture.

    Each stream has one proxy, which is never freed: `print` does not keep a reference to the stream
    that it writes to, so CPython crashes if the proxy is freed while another thread prints. Output
    from the user's own threads is passed on to the stream.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, name: str, outer: Foreign) -> None:
        super().__init__()
        self.name = f"<{name}>"
        self._stream = name
        self._outer = outer
        self.forward = getattr(outer, "write", None)

    @classmethod
    def standing_for(cls, name: str, outer: Foreign) -> Stream:
        """Return the proxy for `outer`, which may already be a proxy."""
        if isinstance(outer, cls):
            return outer
        stream = _streams.setdefault((name, id(outer)), cls(name, outer))
        forward = getattr(outer, "write", None)
        if getattr(forward, "__self__", None) is not stream:  # otherwise this is a nested capture
            stream.forward = forward
        return stream

    def __getattr__(self, name: str) -> Foreign:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._outer, name)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        """Return False, because cursor movements would not be displayed."""
        return False

    def fileno(self) -> int:
        return int(self._outer.fileno())

    def write(self, text: object) -> int:
        """Write to the capture, or otherwise to the usual destination."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        collector = collecting()
        if collector is not None:
            collector.write(self._stream, text)
        elif self.forward is not None:
            self.forward(text)
        return len(text)

    def flush(self) -> None:
        """Flush the original stream, unless the output is captured."""
        if self._outer is not None and collecting() is None:
            self._outer.flush()

    def close(self) -> None:
        """Do nothing, because code that closes stdout must not disable later output."""


_streams: dict[tuple[str, int], Stream] = {}
"""Proxies by the original stream's name and id; each one keeps its stream alive."""


class Publisher:
    """A proxy for the shell's display publisher."""

    def __init__(self, collector: OutputCollector, outer: Foreign) -> None:
        self._collector = collector
        self._outer = outer

    def __getattr__(self, name: str) -> Foreign:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._outer, name)

    def publish(
        self,
        data: Mapping[str, Json],
        metadata: Mapping[str, Json] | None = None,
        *,
        transient: Mapping[str, Json] | None = None,
        update: bool = False,
        **_kwargs: object,
    ) -> None:
        """Capture a display; updates to displays outside the run are passed on."""
        display_id = (transient or {}).get("display_id")
        if collecting() is self._collector:
            if not update:
                self._collector.display(data, metadata, display_id)
                return
            if display_id and self._collector.update(display_id, data, metadata):
                return
            data = self._collector.kept(data)
        self._outer.publish(data=data, metadata=metadata, transient=transient, update=update)

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        if collecting() is self._collector:
            self._collector.clear(wait=wait)
        else:
            self._outer.clear_output(wait)


def drain(stream: Foreign) -> None:
    """Wait for subprocess output, which an ipykernel thread reads from a pipe."""
    pipe, reader = getattr(stream, "_fid", None), getattr(stream, "watch_fd_thread", None)
    if not isinstance(pipe, int) or reader is None:
        return
    until = time.monotonic() + _DRAIN
    while time.monotonic() < until and not _all_read(pipe, reader):
        time.sleep(0.0005)


def _all_read(pipe: int, reader: threading.Thread) -> bool:
    """Return whether the pipe is empty and its reader is waiting for more."""
    import fcntl
    import termios

    waiting = bytearray(4)
    try:
        fcntl.ioctl(pipe, termios.FIONREAD, waiting)
        if any(waiting):
            return False
        call = Path(f"/proc/self/task/{reader.native_id}/syscall").read_text(encoding="ascii")
    except OSError:  # not available on this system: 2 ms are usually enough
        time.sleep(0.002)
        return True
    return call.split()[1:2] == [hex(pipe)]


KEPT_CALLBACKS = frozenset({"matplotlib_inline.backend_inline", "IPython.extensions.autoreload"})
"""Modules whose event callbacks also run for nested code, to display its figures and reload edited
modules. All others (timers, checkers, recorders) are meant for the user's own cells."""

_LINE_LIMIT = 20_000
_HANDLER = f"{Path('hermes_nb', 'notebook', 'interrupt.py')}:"
"""Marks our signal handler's frame, which raises KeyboardInterrupt, in a traceback."""


@contextmanager
def undisturbed(shell: Shell) -> Iterator[None]:
    """Restore the state that running a cell changes, except the namespace."""
    with ExitStack() as stack:
        _swap(
            stack,
            shell,
            execution_count=...,
            last_execution_result=...,
            last_execution_succeeded=...,
            _last_traceback=...,
            _last_traceback_during_displayhook=...,
            sys_excepthook=...,
            rl_next_input=...,
            keepkernel_on_exit=...,
            call_pdb=False,  # no one could answer a debugger's prompt
        )
        _swap(stack, shell.displayhook, exec_result=...)
        # A signal between two bytecodes of a trap can leave its count wrong.
        _swap(stack, shell.display_trap, _nested_level=..., old_hook=...)
        _swap(stack, shell.builtin_trap, _nested_level=...)
        _swap(stack, shell.InteractiveTB, tb=...)  # the traceback that `%debug` enters
        _swap(stack, shell.payload_manager, _payload=[])
        _swap(stack, sys, last_type=..., last_value=..., last_traceback=..., last_exc=...)
        yield


@contextmanager
def captured(shell: Shell, collector: OutputCollector, code: str) -> Iterator[None]:
    """Send all output to `collector` until the block ends."""

    def show_error(etype: type[BaseException], evalue: Foreign, stb: Foreign) -> None:
        entries = [stb] if isinstance(stb, str) else [str(entry) for entry in stb or ()]
        shown = [head_tail(entry, _LINE_LIMIT) for entry in entries if _HANDLER not in entry]
        collector.error(etype.__name__, text_of(evalue), shown)

    def show_page(data: Foreign, *_args: Foreign, **_kwargs: Foreign) -> None:
        collector.display(data if isinstance(data, Mapping) else {"text/plain": data})

    hook = _display_hook(shell, collector, code)
    with ExitStack() as stack:
        _swap(
            stack,
            shell,
            display_pub=Publisher(collector, shell.display_pub),
            _showtraceback=show_error,
            ask_exit=partial(sys.exit, 0),  # `exit()` ends the code, not the kernel
        )
        _swap(stack, shell.events, trigger=_quiet_trigger(shell))
        # IPython takes the hook from `sys` inside a running cell, otherwise from the trap.
        _swap(stack, shell.display_trap, hook=hook)
        _swap(stack, sys, displayhook=hook)
        stack.callback(shell.hooks.__setitem__, "show_in_pager", shell.hooks["show_in_pager"])
        shell.hooks["show_in_pager"] = show_page
        opened(collector)
        stack.callback(collector.close)  # after both streams have been drained into it
        for name in ("stdout", "stderr"):
            outer = getattr(sys, name)
            stream = Stream.standing_for(name, outer)
            _swap(stack, sys, **{name: stream})
            if outer is not stream and hasattr(outer, "pub_thread"):
                # ipykernel's stream. Logging that was set up earlier still refers to it, and
                # subprocess output (descriptors 1 and 2) arrives through it, from a thread.
                _swap(stack, outer, write=stream.write)
                reader = getattr(outer, "watch_fd_thread", None)
                if reader is not None:
                    collect_from(reader)
                stack.callback(drain, outer)
        yield


def text_of(error: Foreign) -> str:
    """Return an exception's text, truncated if long; its `__str__` is user code and may fail."""
    try:
        return head_tail(str(error), _LINE_LIMIT)
    except Exception as failure:  # noqa: BLE001 - user code can raise anything
        return f"(its text cannot be shown: {type(failure).__name__})"


def _display_hook(shell: Shell, collector: OutputCollector, code: str) -> Callable[[Foreign], None]:
    """Return a display hook that does not change `_`, `__` or `Out`."""

    def quiet() -> bool:
        if ";" not in code:
            return False
        try:
            return bool(shell.displayhook.semicolon_at_end_of_expression(code))
        except Exception:  # noqa: BLE001 - a cell with magics may not be valid Python
            return code.rstrip().endswith(";")

    def hook(result: Foreign = None) -> None:
        if result is None or quiet():
            return
        data, metadata = shell.display_formatter.format(result)
        if data:  # otherwise `_ipython_display_` has displayed it already
            collector.result(data, metadata)

    return hook


def _quiet_trigger(shell: Shell) -> Callable[..., None]:
    """Return an `events.trigger` that calls only the callbacks in `KEPT_CALLBACKS`.

    The lists of callbacks are not replaced, so nested code can register its own.
    """

    def trigger(event: str, *args: Foreign, **kwargs: Foreign) -> None:
        for callback in list(shell.events.callbacks[event]):
            if getattr(callback, "__module__", "") in KEPT_CALLBACKS:
                try:
                    callback(*args, **kwargs)
                except (Exception, KeyboardInterrupt):  # noqa: BLE001 - as IPython's own does
                    shell.showtraceback()

    return trigger


def _swap(stack: ExitStack, target: Foreign, **values: object) -> None:
    """Set attributes (`...` only saves them) and restore all of them when the stack closes.

    An attribute not previously set on the instance, such as a method, is deleted from it.
    """
    for name, value in values.items():
        mine: dict[str, object] = target.__dict__
        if name in mine:
            stack.callback(setattr, target, name, mine[name])
        elif inspect.isdatadescriptor(getattr(type(target), name, None)):
            stack.callback(setattr, target, name, getattr(target, name))
        else:
            stack.callback(mine.pop, name, None)
        if value is not ...:
            setattr(target, name, value)
