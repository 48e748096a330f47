"""IPython's shell, as used by this package: a type for it, and helpers to inspect it."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hermes_nb.core.errors import ConfigError

if TYPE_CHECKING:
    from hermes_nb.safety.guard import Mode

EXTENSION = "hermes_nb"
MAGIC = "hermes"
LOADED = (
    "Hermes is loaded. Start a cell with %%hermes, or ask in the panel (%hermes panel). "
    "%hermes help lists the commands.\n"
)
"""What `%load_ext hermes_nb` prints in a notebook or a terminal that a user works in."""
Foreign: TypeAlias = Any
"""A value from an untyped library, such as a part of the shell."""


class Shell(Protocol):
    """The parts of an `InteractiveShell` that this package uses.

    Only a shell inside a Jupyter kernel has a `kernel`: check with `has_kernel`.
    """

    user_ns: dict[str, Foreign]
    user_ns_hidden: dict[str, Foreign]
    execution_count: int
    starting_dir: str
    kernel: Foreign
    configurables: list[Foreign]
    magics_manager: Foreign
    extension_manager: Foreign
    history_manager: Foreign
    payload_manager: Foreign
    display_pub: Foreign
    displayhook: Foreign
    display_trap: Foreign
    display_formatter: Foreign
    builtin_trap: Foreign
    events: Foreign
    InteractiveTB: Foreign
    compile: Foreign
    hooks: Foreign
    input_transformers_cleanup: list[Callable[[list[str]], list[str]]]
    input_transformers_post: list[Callable[[list[str]], list[str]]]
    loop_runner: Callable[[Awaitable[object]], object]

    def ev(self, expr: str) -> Foreign:
        """Evaluate an expression in the user's namespace."""
        ...

    def register_magics(self, *magics: object) -> None:
        """Register magic classes or objects."""
        ...

    @property
    def run_cell_async(self) -> Callable[..., Coroutine[Foreign, Foreign, Foreign]]:
        """A coroutine function that runs a cell and returns its `ExecutionResult`."""
        ...

    def set_next_input(self, s: str, replace: bool = False) -> None:  # noqa: FBT001, FBT002
        """Set the text of the next cell."""
        ...

    @property
    def should_run_async(self) -> Callable[..., bool]:
        """A function that returns whether a cell needs the event loop."""
        ...

    def showtraceback(self, exc_tuple: Foreign = None) -> None:
        """Show the traceback of the current exception, or of this one."""
        ...

    def transform_cell(self, raw_cell: str) -> str:
        """Return a cell's source as plain Python."""
        ...


def hermes_magics(shell: Shell) -> Foreign:
    """Return this package's magics in a shell, or None if they are not loaded.

    Compares modules, because another package may use the same magic and class names.
    """
    module = f"{EXTENSION}.notebook.magics"
    return next((each for each in shell.configurables if type(each).__module__ == module), None)


def other_provider(shell: Shell) -> str:
    """Return the package that provides `%%hermes`, or "" if it is this one."""
    magic = shell.magics_manager.magics["cell"].get(MAGIC)
    module = getattr(magic, "spec", "") or getattr(
        magic, "__module__", ""
    )  # a lazy magic names its package in `spec`
    package: str = module.partition(".")[0]
    return "" if package == EXTENSION else package


@dataclass(slots=True, eq=False)
class TurnCell:
    """The cell in which a turn was started. The turn's output is displayed there."""

    request: Mapping[str, Foreign]
    """The Jupyter message that ran the cell; {} without a kernel."""
    can_ask: bool
    """Whether the user could answer `input()` in this cell."""
    count: int
    """The cell's execution count."""
    mode: Mode | None = None
    """The turn's approval mode; None before and after the turn."""
    what_if: Foreign = None
    """What the turn tries on a copy, as an `execute.trial.WhatIf`; None without `--what-if`."""
    over: bool = False
    """Whether the turn runs next to the user's cells, because this one does not wait for it."""

    @property
    def id(self) -> str:
        """The cell's id, or "" if the front end does not send it."""
        return str((self.request.get("metadata") or {}).get("cellId") or "")


turn_cell: ContextVar[TurnCell | None] = ContextVar("hermes_nb_turn_cell", default=None)
"""The cell of the turn to which the current code belongs."""


def runs_beside() -> bool:
    """Return whether the calling code belongs to a turn that runs next to the user's cells."""
    cell = turn_cell.get()
    return cell is not None and cell.over


def request_of(shell: Shell) -> Mapping[str, Foreign]:
    """Return the message that ran the current turn's cell, or otherwise the running cell."""
    if (cell := turn_cell.get()) is not None:
        return cell.request
    kernel = getattr(shell, "kernel", None)
    return kernel.get_parent() if kernel is not None else {}


def publisher_of(shell: Shell) -> Foreign:
    """Return the shell's display publisher, even while a cell of the user's captures displays."""
    kind = getattr(shell, "display_pub_class", ())
    own = (each for each in shell.configurables if kind and isinstance(each, kind))
    return next(own, shell.display_pub)


def is_message(source: str) -> bool:
    """Return whether a cell's source is a message to the agent."""
    return source.lstrip().startswith(("%hermes", "%%hermes"))


def running_cell(shell: Shell) -> str:
    """Return the id of the turn's cell, or else of the running cell; "" if it is unknown."""
    return str((request_of(shell).get("metadata") or {}).get("cellId") or "")


def next_number(shell: Shell) -> int:
    """Return the running cell's execution count, which a cell run inside it would take over.

    Outside a cell that is stored in the history, it is the next cell's count. The kernel counts the
    running cell when it starts or, with an older IPython, when it ends.
    """
    if runs_beside():
        return shell.execution_count
    content = request_of(shell).get("content") or {}
    counted = content.get("store_history", False)
    return int(shell.displayhook.prompt_count if counted else shell.execution_count)


def working_directory() -> Path:
    """Return the kernel's working directory; raise `ConfigError` if it has been deleted."""
    try:
        return Path(os.getcwd())  # noqa: PTH109 - same as Path.cwd()
    except OSError as error:
        raise ConfigError("the working directory has been deleted; `%cd` to another one") from error


def has_kernel(shell: Shell) -> bool:
    """Return whether the shell runs in a Jupyter kernel."""
    return getattr(shell, "kernel", None) is not None


def can_ask(shell: Shell) -> bool:
    """Return whether the user can answer `input()` in the running cell."""
    if not has_kernel(shell):
        return sys.stdin is not None and sys.stdin.isatty()
    if (cell := turn_cell.get()) is not None:
        return cell.can_ask
    return bool(getattr(shell.kernel, "_allow_stdin", False))
