"""IPython's state and hooks, taken over for the time of a nested run and put back exactly.

Each entry is something a nested `run_cell` was seen to leave changed, or a door through which its
output would reach the front end.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hermes_nb.core.text import head_tail
from hermes_nb.notebook.running.capture import Publisher, Stream, drain
from hermes_nb.notebook.running.collector import Collector
from hermes_nb.notebook.values.kinds import Foreign

KEPT_CALLBACKS = frozenset({"matplotlib_inline.backend_inline", "IPython.extensions.autoreload"})
"""Modules whose event callbacks nested code gets too: its figures are shown, and modules that were
edited are reloaded. All others belong to the user's own cells (timers, checkers, recorders)."""

_LINE_LIMIT = 20_000
_HANDLER = f"{Path('hermes_nb', 'notebook', 'interrupt.py')}:"
"""Where a traceback names the frame of our signal handler, which raised the exception."""


@contextmanager
def undisturbed(shell: Foreign) -> Iterator[None]:
    """Put back what running a cell changes besides the namespace."""
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
            call_pdb=False,  # nobody is there to answer a debugger's prompt
        )
        _swap(stack, shell.displayhook, exec_result=...)
        # A signal between two of its bytecodes can leave a trap's count wrong.
        _swap(stack, shell.display_trap, _nested_level=..., old_hook=...)
        _swap(stack, shell.builtin_trap, _nested_level=...)
        _swap(stack, shell.InteractiveTB, tb=...)  # what `%debug` would enter
        _swap(stack, shell.payload_manager, _payload=[])
        _swap(stack, sys, last_type=..., last_value=..., last_traceback=..., last_exc=...)
        yield


@contextmanager
def captured(shell: Foreign, collector: Collector, code: str) -> Iterator[None]:
    """Send what is shown to `collector` until the block ends."""

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
            ask_exit=_refuse_exit,
        )
        _swap(stack, shell.events, trigger=_quiet_trigger(shell))
        # It is looked for in sys when a cell runs around us, and in the trap when none does.
        _swap(stack, shell.display_trap, hook=hook)
        _swap(stack, sys, displayhook=hook)
        _swap_item(stack, shell.hooks, "show_in_pager", show_page)
        stack.callback(collector.close)  # after both streams have been drained into it
        for name in ("stdout", "stderr"):
            outer = getattr(sys, name)
            stream = Stream(collector, name, outer)
            _swap(stack, sys, **{name: stream})
            if hasattr(outer, "pub_thread"):
                # ipykernel's stream: logging set up earlier holds it, and what subprocesses write
                # to descriptors 1 and 2 arrives through it.
                _swap(stack, outer, write=stream.write)
                stack.callback(drain, outer)
        yield


def text_of(error: Foreign) -> str:
    """Return an exception's text, at some length; its `__str__` is the user's and may fail."""
    try:
        return head_tail(str(error), _LINE_LIMIT)
    except Exception as failure:  # noqa: BLE001 - anything can come out of it
        return f"(its text cannot be shown: {type(failure).__name__})"


def _display_hook(shell: Foreign, collector: Collector, code: str) -> Callable[[Any], None]:
    """Return a display hook that leaves `_`, `__` and `Out` alone."""

    def quiet() -> bool:
        if ";" not in code:
            return False
        try:
            return bool(shell.displayhook.semicolon_at_end_of_expression(code))
        except Exception:  # noqa: BLE001 - a cell with magics need not be tokens
            return code.rstrip().endswith(";")

    def hook(result: Foreign = None) -> None:
        if result is None or quiet():
            return
        data, metadata = shell.display_formatter.format(result)
        if data:  # a `_ipython_display_` has shown itself already
            collector.result(data, metadata)

    return hook


def _quiet_trigger(shell: Foreign) -> Callable[..., None]:
    """Return an `events.trigger` that calls only the callbacks that nested code is to have.

    The lists of callbacks stay as they are: what nested code registers is registered.
    """

    def trigger(event: str, *args: Foreign, **kwargs: Foreign) -> None:
        for callback in list(shell.events.callbacks[event]):
            if getattr(callback, "__module__", "") in KEPT_CALLBACKS:
                try:
                    callback(*args, **kwargs)
                except (Exception, KeyboardInterrupt):  # noqa: BLE001 - as IPython's own does
                    shell.showtraceback()

    return trigger


def _refuse_exit() -> None:
    """Make `exit()` end the code, not the kernel."""
    raise SystemExit(0)


def _swap(stack: ExitStack, target: Foreign, **values: object) -> None:
    """Set attributes (`...` leaves one as it is) and have the stack put all of them back.

    A method that an instance attribute shadows is uncovered again, not pinned to the instance.
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


def _swap_item(stack: ExitStack, target: Foreign, key: str, value: Foreign) -> None:
    stack.callback(target.__setitem__, key, target[key])
    target[key] = value
