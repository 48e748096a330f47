"""`%%hermes` in a kernel where nobody said `%load_ext hermes_nb`: what loads it, just in time.

IPython loads a lazily declared magic when a cell calls it. Ours are async, and what puts `await`
before the call has to be there before the cell is read. So `watch`, which `jupyter hermes enable`
has every kernel call as it starts, looks for the magic in what is about to run, and notes whether
cells load something from the network; it imports nothing else, and costs a kernel nothing else.
"""

from __future__ import annotations

import functools
import re
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.execute.network import watch_cells
from hermes_nb.notebook.shell import EXTENSION, MAGIC, Shell, other

CALL = re.compile(r"^\s*(?:[\w.,\[\]'\" ]+=\s*)?%%?hermes\b")


class LoadedLate(HermesError):
    """The extension was loaded in the middle of the cell that needed it."""


def watch(shell: Shell) -> None:
    """Load the extension as soon as a cell has one of its magics, before the cell is read."""
    if EXTENSION in shell.extension_manager.loaded:
        return
    watch_cells(shell)
    hooks: list[Callable[[list[str]], list[str]]] = shell.input_transformers_cleanup

    def load_in_time(lines: list[str]) -> list[str]:
        if other(shell) or not any(CALL.match(line) for line in lines):
            return lines
        before = [hook for hook in hooks if hook is not load_in_time]
        hooks[:] = before
        if EXTENSION not in shell.extension_manager.loaded:
            _load(shell)
        for hook in hooks[len(before) :]:  # this cell's lines are underway without them
            lines = hook(lines)
        return lines

    load_in_time.has_side_effects = True  # type: ignore[attr-defined] # not for mere questions
    hooks.append(load_in_time)
    shell.magics_manager.register_lazy(MAGIC, EXTENSION)  # so that it completes, and has a help


load_ipython_extension = watch
"""So that a kernelspec can name this module as an extension of its own."""


def _load(shell: Shell) -> None:
    """Load the extension; a stop meanwhile, for which no cell runs yet, comes again when one does.

    It would end the kernel's own work on the message, and the cell would never be answered.
    """
    import asyncio

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        shell.extension_manager.load_extension(EXTENSION)
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        shell.extension_manager.load_extension(EXTENSION)
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            try:
                asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            except RuntimeError:  # a terminal
                signal.raise_signal(signal.SIGINT)


def settle_running_call(shell: Shell) -> None:
    """Help a call of the magic in the cell that loads the extension, as it was read without it.

    That happens where only `lazy_magics` is configured, and in a cell with both `%load_ext` and
    `%hermes`. In a terminal nothing else runs, so a lazy first call runs to its end where it
    stands; elsewhere it cannot, and `LoadedLate` says to run the cell once more.
    """
    caller = sys._getframe(1)  # noqa: SLF001 - the only way to the caller
    kind = _called(caller)
    if not kind:
        if any(CALL.match(line) for line in _running_cell(caller).splitlines()):
            message = "Hermes is loaded now; run this cell once more, as it was read before that"
            raise LoadedLate(message)
        return
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _run_first_call(shell, kind)
        return
    raise LoadedLate("Hermes is loaded now; run this cell once more")


def _called(frame: FrameType | None) -> str:
    """Return how a frame's callers call the magic: as a `line`, as a `cell`, or not at all ("")."""
    kinds = {"run_line_magic": "line", "run_cell_magic": "cell"}
    while frame is not None:
        kind = kinds.get(frame.f_code.co_name, "")
        if kind and frame.f_locals.get("magic_name") == MAGIC:
            return kind
        frame = frame.f_back
    return ""


def _running_cell(frame: FrameType | None) -> str:
    """Return the source of the cell that a frame is called from, "" where there is none."""
    while frame is not None:
        if frame.f_code.co_name == "run_cell_async":
            return str(frame.f_locals.get("raw_cell", ""))
        frame = frame.f_back
    return ""


def _run_first_call(shell: Shell, kind: str) -> None:
    magics = shell.magics_manager.magics[kind]
    magic = magics[MAGIC]

    @functools.wraps(magic)
    def first(*arguments: str) -> object:
        magics[MAGIC] = magic
        return shell.loop_runner(magic(*arguments))

    magics[MAGIC] = first
