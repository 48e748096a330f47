"""Reads Python code for what it does to files, processes and shells, without running it.

The code is parsed, not searched: a dangerous word in a string that is only printed is no danger.
Names are followed through imports and plain assignments, strings through `+`, f-strings and the
usual path functions. It sees plain code, not what hides; whoever wants to hide is asked about.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hermes_nb.safety.commands.python_names import Names, names_in

Kind = Literal["delete_tree", "delete_file", "write", "shell", "kill", "fork_loop"]

_TREES = frozenset({"shutil.rmtree", "os.removedirs", "shutil.move"})
_FILES = frozenset({"os.remove", "os.unlink", "os.rmdir", "os.truncate"})
_SHELLS = frozenset(
    {
        *("os.system", "os.popen", "subprocess.run", "subprocess.call", "subprocess.check_call"),
        *("subprocess.check_output", "subprocess.Popen", "subprocess.getoutput", "pty.spawn"),
        *("subprocess.getstatusoutput", "get_ipython.system", "get_ipython.getoutput"),
    }
)
_METHODS: dict[str, Kind] = {
    "unlink": "delete_file",
    "rmdir": "delete_file",
    "write_text": "write",
    "write_bytes": "write",
}
_EVALUATE = frozenset({"exec", "eval", "compile"})


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that code does, and to what: a path, a command line, a process id."""

    kind: Kind
    target: str


def effects(code: str) -> Iterator[Effect]:
    """Yield what the code plainly does; nothing if it does not parse."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    names = names_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and _forks(node, names):
            yield Effect("fork_loop", "")
        elif isinstance(node, ast.Call):
            yield from _call(node, names)


def _call(node: ast.Call, names: Names) -> Iterator[Effect]:
    path = names.path(node.func)
    first = node.args[0] if node.args else None
    if path in _TREES and first is not None:
        yield Effect("delete_tree", names.text(first))
    elif path in _FILES and first is not None:
        yield Effect("delete_file", names.text(first))
    elif path in _SHELLS and first is not None:
        yield Effect("shell", _command_line(first, names))
    elif path.startswith(("os.exec", "os.spawn")) and node.args:
        yield Effect("shell", _command_line(node.args[-1], names))
    elif path == "os.kill" and first is not None:
        yield Effect("kill", names.text(first))
    elif path in _EVALUATE and first is not None:
        yield from effects(names.text(first))
    elif path in ("open", "io.open") and first is not None and _opens_to_write(node, names):
        yield Effect("write", names.text(first))
    elif isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        yield Effect(_METHODS[node.func.attr], names.text(node.func.value))


def _command_line(node: ast.expr, names: Names) -> str:
    """Return the command of a call as a shell would be given it; a list is quoted word by word."""
    if isinstance(node, ast.List | ast.Tuple):
        return " ".join(shlex.quote(names.text(item)) for item in node.elts)
    return names.text(node)


def _opens_to_write(node: ast.Call, names: Names) -> bool:
    mode = node.args[1] if len(node.args) > 1 else None
    mode = next((word.value for word in node.keywords if word.arg == "mode"), mode)
    return mode is not None and any(letter in names.text(mode) for letter in "wax+")


def _forks(loop: ast.While, names: Names) -> bool:
    endless = isinstance(loop.test, ast.Constant) and bool(loop.test.value)
    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call))
    return endless and any(names.path(call.func) == "os.fork" for call in calls)
