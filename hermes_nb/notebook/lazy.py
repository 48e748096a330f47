"""Load the extension when a cell calls `%%hermes` without `%load_ext hermes_nb`.

IPython loads a lazily registered magic when a cell calls it. That is too late for ours: they are
async, and the transformer that inserts `await` must exist before the cell is parsed. So
`jupyter hermes enable` makes every kernel call `watch` on startup. It looks for the magic in each
cell, and records whether cells load anything from the network. It imports nothing else, and adds no
other cost to a kernel.
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
from hermes_nb.notebook.shell import EXTENSION, LOADED, MAGIC, Shell, can_ask, other_provider

CALL = re.compile(r"^\s*(?:[\w.,\[\]'\" ]+=\s*)?%%?hermes\b")
"""A line that calls one of our magics."""
_LOADS = re.compile(r"(?m)^\s*%(?:re)?load_ext\s+hermes_nb\b")


class LoadedLate(HermesError):
    """The extension was loaded partway through the cell that needed it."""


def watch(shell: Shell) -> None:
    """Load the extension as soon as a cell contains one of its magics, before it is parsed."""
    if EXTENSION in shell.extension_manager.loaded:
        return
    watch_cells(shell)
    hooks: list[Callable[[list[str]], list[str]]] = shell.input_transformers_cleanup

    def load_in_time(lines: list[str]) -> list[str]:
        if other_provider(shell) or not any(CALL.match(line) for line in lines):
            return lines
        before = [hook for hook in hooks if hook is not load_in_time]
        hooks[:] = before
        if EXTENSION not in shell.extension_manager.loaded:
            _load(shell)
        for hook in hooks[len(before) :]:  # the new hooks missed this cell's lines
            lines = hook(lines)
        return lines

    load_in_time.has_side_effects = True  # type: ignore[attr-defined] # IPython's completeness checks skip it
    hooks.append(load_in_time)
    shell.magics_manager.register_lazy(MAGIC, EXTENSION)  # for completion and help


load_ipython_extension = watch
"""Lets a kernelspec name this module as an extension."""


def _load(shell: Shell) -> None:
    """Load the extension, and delay any interrupt until the cell runs.

    An earlier interrupt would end the kernel's handling of the message, and the cell would never
    receive a reply.
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
    """Handle the cell that loads the extension and also calls the magic.

    Such a cell was parsed without the transformers. This happens if only `lazy_magics` is
    configured, or if a cell has both `%load_ext` and `%hermes`. In a terminal, a lazy first call
    runs synchronously until it ends. Elsewhere that is not possible, and `LoadedLate` asks the user
    to run the cell again.
    """
    caller = sys._getframe(1)  # noqa: SLF001 - the only way to the caller
    kind = _called(caller)
    if not kind:
        if any(CALL.match(line) for line in _running_cell(caller).splitlines()):
            message = (
                "Hermes is loaded now; run this cell again, because Jupyter parsed it before "
                "Hermes was loaded"
            )
            raise LoadedLate(message)
        return
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _run_first_call(shell, kind)
        return
    raise LoadedLate("Hermes is loaded now; run this cell again")


def announce(shell: Shell) -> None:
    """Print one line if a cell of the user loads the extension; say nothing in scripts and CI."""
    if can_ask(shell) and _LOADS.search(_running_cell(sys._getframe(1))):  # noqa: SLF001 - as above
        sys.stdout.write(LOADED)


def _called(frame: FrameType | None) -> str:
    """Return how a frame or its callers call the magic: `line`, `cell`, or "" for not at all."""
    kinds = {"run_line_magic": "line", "run_cell_magic": "cell"}
    while frame is not None:
        kind = kinds.get(frame.f_code.co_name, "")
        if kind and frame.f_locals.get("magic_name") == MAGIC:
            return kind
        frame = frame.f_back
    return ""


def _running_cell(frame: FrameType | None) -> str:
    """Return the source of the cell that a frame was called from, or ""."""
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
