"""Save the variables that code may change, and restore them in the same objects.

Each object that code can reach is saved with a shallow copy of its own state (`state`). Nothing is
pickled and no process is forked. `restore` gives the same objects their old state, so that aliases
and identities stay. What cannot be saved is listed in `lost`, by the variable that leads to it.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
import sysconfig
import time
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.notebook.execute.library_state import library_kinds, open_figures
from hermes_nb.notebook.execute.state import (
    BUILT_IN,
    CONSTANT,
    DICT,
    CannotKeep,
    Kind,
    called,
    changeable,
    equal,
    kind_of,
    module_of,
)
from hermes_nb.notebook.shell import Foreign

_IPYTHON = re.compile(
    r"_+|_i{1,3}|_i?\d+|_[doi]h|__\w+__|_exit_code|In|Out|exit|quit|get_ipython|open"
)
"""Names of IPython's: its history is not restored, and its shell leads to everything."""
_EVERYTHING = frozenset(
    "globals locals vars exec eval get_ipython __import__ gc sys inspect".split()
)
"""Names by which code reaches every variable."""
_EVERY = 64
"""Objects between two looks at the clock."""
_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, also those outside of the environment, such as the user's."""
_INSTALLED = tuple(
    str(Path(path).resolve()) for path in {*sysconfig.get_paths().values(), sys.prefix}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What saving may cost."""

    objects: int = 50_000
    """Number of objects."""
    seconds: float = 0.25
    """CPU time."""
    size: int = 512_000_000
    """Bytes copied; tables of pandas 3 copy none."""


FULL = Limits()
"""For the variables that code names."""
BESIDE = Limits(objects=5_000, seconds=0.004, size=16_000_000)
"""For the other variables, which code could reach only through a library."""


@dataclass(slots=True)
class Saved:
    """An object and the state that was saved."""

    value: Foreign
    """The object."""
    kind: Kind
    """How it is saved."""
    state: Foreign
    """Its state."""
    size: int
    """Bytes copied."""
    root: str
    """The first variable that leads to it."""

    def same(self) -> bool:
        """Return whether the object still has this state; False if it refuses to be read."""
        try:
            return self.kind.same(self.value, self.state)
        except Exception:  # an object may be in any state now
            return False

    def saved_now(self) -> Saved:
        """Save the object's current state; raise `CannotKeep`."""
        return Saved(self.value, self.kind, self.kind.save(self.value), self.size, self.root)


_SHARED: dict[int, tuple[type | None, Kind | str]] = {}
"""How objects of installed classes are saved, or why they cannot be, by the id of the class."""


class Snapshot:
    """The variables of a namespace before code runs.

    Args:
        namespace: the variables
        names: the variables that the code may reach, or None for all; only these appear in `lost`
        limits: the most that saving them may cost
        beside: the most that saving all other variables may cost; None to leave them out
    """

    def __init__(
        self,
        namespace: dict[str, Foreign],
        names: Iterable[str] | None,
        *,
        limits: Limits = FULL,
        beside: Limits | None = BESIDE,
    ) -> None:
        self._namespace = namespace
        self.bindings = {name: namespace[name] for name in variables(namespace)}
        self.saved: dict[int, Saved] = {}
        self.lost: dict[str, str] = {}
        self._kinds = {**BUILT_IN, **library_kinds()}
        self._found: dict[int, Kind | str] = {}
        self._more: list[str] = []
        self._named = True
        self._begin(limits)
        done: set[str] = set()
        reached = frozenset(self.bindings if names is None else names)
        self._note([name for name in self.bindings if name in reached], done)
        if names is not None and beside is not None:
            self._named = False
            self._begin(beside)
            self._note([*self.bindings], done)

    def _begin(self, limits: Limits) -> None:
        self._objects, self._room = limits.objects, limits.size
        self._until = time.thread_time() + limits.seconds

    def _note(self, names: list[str], done: set[str]) -> None:
        """Save variables, and those that functions among them name."""
        while names:
            name = names.pop(0)
            if name in done or name not in self.bindings:
                continue
            done.add(name)
            self._walk(self.bindings[name], name)
            if self._named:
                names += self._more
            self._more.clear()

    def _walk(self, value: Foreign, root: str) -> None:
        todo = changeable([value])
        saved, found = self.saved, self._found
        while todo:
            value = todo.pop()
            if id(value) in saved:
                continue
            kind = found.get(id(type(value)))
            if kind is None:
                kind = found[id(type(value))] = self._kind(type(value))
            if isinstance(kind, str):
                self._lose(root, kind)
                continue
            if kind is CONSTANT:
                continue
            self._objects -= 1
            if self._objects < 0 or (
                self._objects % _EVERY == 0 and time.thread_time() > self._until
            ):
                self._lose(root, "too many objects")
                return
            try:
                todo += self._save(value, kind, root)
            except CannotKeep as what:
                self._lose(root, str(what))
            except Exception as error:  # an object may refuse to be read
                self._lose(root, f"{called(type(value))} ({type(error).__name__})")

    def _save(self, value: Foreign, kind: Kind, root: str) -> Iterable[object]:
        """Save one object; return those inside."""
        if issubclass(type(value), (types.ModuleType, type)) and not is_own(value):
            return open_figures() if value is sys.modules.get("matplotlib.pyplot") else ()
        if type(value) is types.ModuleType:
            value, kind = vars(value), DICT
        if type(value) is types.FunctionType:
            self._follow(value)
        size = kind.size(value)
        if size > self._room:
            raise CannotKeep(f"{size / 1e6:,.0f} MB")
        state = kind.save(value)
        if kind.lost:
            self._lose(root, kind.lost)
        self._room -= size
        self.saved[id(value)] = Saved(value, kind, state, size, root)
        return changeable(kind.children(value, state))

    def _kind(self, kind: type) -> Kind | str:
        if issubclass(kind, types.ModuleType):
            return DICT
        known, found = _SHARED.get(id(kind), (None, ""))
        if known is kind:
            return found
        try:
            found = kind_of(kind, self._kinds)
        except CannotKeep as what:
            found = str(what)
        if not is_own(kind):
            _SHARED[id(kind)] = kind, found
        return found

    def _lose(self, root: str, what: str) -> None:
        if self._named:
            self.lost.setdefault(root, what)

    def _follow(self, function: types.FunctionType) -> None:
        """Add the variables that a function of the user's names."""
        if function.__globals__ is not self._namespace:
            return
        names = named_in(function.__code__)
        self._more += self.bindings if names & _EVERYTHING else sorted(names)

    def rebound(self) -> list[str]:
        """Return the names that are new, deleted or bound to another object."""
        now = {name: self._namespace[name] for name in variables(self._namespace)}
        missing = object()
        return [
            name
            for name in {**self.bindings, **now}
            if not equal(self.bindings.get(name, missing), now.get(name, missing))
        ]

    def changed(self) -> list[Saved]:
        """Return the objects whose state differs now."""
        return [saved for saved in self.saved.values() if not saved.same()]

    def leading_to(self, changed: Iterable[Saved]) -> dict[int, list[str]]:
        """Return the variables that lead to each of some objects, by the object's id."""
        above: dict[int, list[int]] = {}
        for key, saved in self.saved.items():
            for child in saved.kind.children(saved.value, saved.state):
                above.setdefault(id(child), []).append(key)
        roots: dict[int, list[str]] = {}
        for name, value in self.bindings.items():
            roots.setdefault(id(value), []).append(name)
        found: dict[int, list[str]] = {}
        for each in changed:
            todo, seen = [id(each.value)], set[int]()
            while todo:
                if (key := todo.pop()) not in seen:
                    seen.add(key)
                    todo += above.get(key, ())
            names = {name for key in seen for name in roots.get(key, ())}
            found[id(each.value)] = [name for name in self.bindings if name in names]
        return found


def variables(namespace: Mapping[str, Foreign]) -> list[str]:
    """Return the names in a namespace, without those that IPython defines."""
    return [name for name in list(namespace) if not _IPYTHON.fullmatch(name)]


def is_own(value: object) -> bool:
    """Return whether a class or module is the user's, not a part of an installed package."""
    is_class = issubclass(type(value), type)
    module = sys.modules.get(module_of(value)) if is_class else value  # type: ignore[arg-type]
    name = str(vars(module).get("__name__")) if module is not None else "__main__"
    if name.partition(".")[0] in ("__main__", "hermes_nb"):
        return name == "__main__" and is_class
    file = str(vars(module).get("__file__") or "") if module is not None else ""
    return bool(file) and not _is_installed(file)


@functools.cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    return str(path).startswith(_INSTALLED) or not _PACKAGES.isdisjoint(path.parts)


def reachable(code: str, namespace: Mapping[str, Foreign]) -> set[str] | None:
    """Return the names in code, or None if it may reach every variable.

    Code with IPython's syntax has to be transformed first.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return None if names & _EVERYTHING else names & {*namespace, *dir(builtins)}


def named_in(code: types.CodeType) -> set[str]:
    """Return the global and attribute names in a code object and in its nested code objects."""
    inside = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(named_in, inside))
