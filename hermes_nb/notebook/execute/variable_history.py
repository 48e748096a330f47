"""The variables that each turn changed, so that undo can restore them.

Only the kernel stores this. Of each run, only what changed is kept: the state before and after.
The state after shows what the user has changed since; undo leaves that alone unless forced.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

from hermes_nb.agent.undo.undo import UndoLine, VariablesRestored
from hermes_nb.notebook.execute.library_state import SETTINGS, memory_of, settings_now
from hermes_nb.notebook.execute.snapshot import Limits, Saved, Snapshot, reachable
from hermes_nb.notebook.execute.state import CannotKeep, named_type
from hermes_nb.notebook.shell import Foreign, Shell
from hermes_nb.notebook.variables import brief, summaries, user_variables

KEEP_TURNS = 50
"""Number of turns whose variables are kept."""
KEEP_BYTES = 1_000_000_000
"""Bytes that earlier states may hold; those of the last turn are always kept."""
CELLS = "cells"
"""Session id of `%%checkpoint` cells; their turn numbers count these cells."""
_AFTER = Limits(objects=5_000, seconds=0.02, size=64_000_000)
_SINCE = "changed since and not restored"
_DIFFERS = "could not be restored"
K = TypeVar("K")
MISSING = object()
"""Stands for the value of a variable that does not exist."""


@dataclass(slots=True)
class Changed:
    """A variable, object or setting that a turn changed."""

    start: int
    """Number of the run that saved `before`."""
    before: Foreign
    """The value or state before."""
    after: Foreign
    """The value or state after."""
    names: list[str] = field(default_factory=list)
    """The variables that lead to it."""


@dataclass(slots=True)
class TurnVariables:
    """What a turn changed. A state that is not known is None."""

    bindings: dict[str, Changed] = field(default_factory=dict)
    """Variables that are new, deleted or bound to another object."""
    objects: dict[int, Changed] = field(default_factory=dict)
    """Changed objects by id, with their `Saved` states."""
    settings: dict[int, Changed] = field(default_factory=dict)
    """Changed settings by their index in `SETTINGS`."""
    fresh: dict[int, Saved] = field(default_factory=dict)
    """States of the objects in new values, after the turn."""
    lost: dict[str, str] = field(default_factory=dict)
    """What could not be saved, by the variable that leads to it."""

    def __bool__(self) -> bool:
        return bool(self.bindings or self.objects or self.settings)

    def names(self) -> list[str]:
        """Return the variables that changed, new ones last."""
        inside = [name for each in self.objects.values() for name in each.names]
        return list(dict.fromkeys([*inside, *self.bindings]))

    def is_new(self, name: str) -> bool:
        """Return whether a variable did not exist before."""
        return name in self.bindings and self.bindings[name].before is MISSING

    def size(self) -> int:
        """Return the bytes that the states before hold."""
        values = [each.before for each in self.bindings.values()]
        values += [each.before.value for each in self.objects.values()]
        return sum(map(_memory, values)) + sum(saved.size for saved in self.fresh.values())

    def add(self, run: TurnVariables) -> None:
        """Add a run's changes: the earliest state before and the latest one after stay."""
        _add(self.bindings, run.bindings)
        _add(self.objects, run.objects)
        _add(self.settings, run.settings)
        self.fresh.update(run.fresh)
        for key, each in run.objects.items():
            if key in self.fresh and each.after is not None:
                self.fresh[key] = each.after
        self.lost.update(run.lost)


def _add(own: dict[K, Changed], others: dict[K, Changed]) -> None:
    for key, other in others.items():
        known = own.setdefault(key, other)
        if known is not other:
            known.after = other.after
            known.names = list(dict.fromkeys([*known.names, *other.names]))
            if other.start < known.start:  # a run around the other
                known.start, known.before = other.start, other.before


def _memory(value: Foreign) -> int:
    with suppress(Exception):
        return memory_of(value)
    return 0


class VariableHistory:
    """The turns of one kernel that changed variables, oldest first."""

    def __init__(self, namespace: dict[str, Foreign]) -> None:
        self._namespace = namespace
        self._turns: dict[tuple[str, int], TurnVariables] = {}
        self._undone: dict[tuple[str, int], TurnVariables] = {}  # before and after exchanged
        self._runs = itertools.count()

    @contextmanager
    def recording(self, session: str, turn: int, code: str) -> Iterator[TurnVariables]:
        """Record the variables that plain Python `code` changes while the context is open.

        The result is complete when the context ends.
        """
        start, run = next(self._runs), TurnVariables()
        before = Snapshot(self._namespace, reachable(code, self._namespace))
        settings = settings_now()
        try:
            yield run
        finally:
            self._compare(run, start, before, settings)
            self._turns.setdefault((session, turn), TurnVariables()).add(run)
            self._make_room()

    def _compare(
        self, run: TurnVariables, start: int, before: Snapshot, settings: Sequence[Foreign]
    ) -> None:
        run.lost.update(before.lost)
        rebound = before.rebound()
        for name in rebound:
            old, new = before.bindings.get(name, MISSING), self._namespace.get(name, MISSING)
            run.bindings[name] = Changed(start, old, new)
        changed = before.changed()
        names = before.leading_to(changed) if changed else {}
        for saved in changed:
            after = None
            with suppress(Exception):  # in that case, later changes to it are not noticed
                after = saved.saved_now()
            key = id(saved.value)
            run.objects[key] = Changed(start, saved, after, names[key])
        for index, (setting, was) in enumerate(zip(SETTINGS, settings, strict=True)):
            is_ = setting.value()
            if was is not None and not setting.same(was, is_):
                run.settings[index] = Changed(start, was, is_)
        if bound := [name for name in rebound if name in self._namespace]:
            new = Snapshot(self._namespace, bound, limits=_AFTER, beside=None)
            run.fresh = {k: v for k, v in new.saved.items() if k not in before.saved}

    def _make_room(self) -> None:
        """Forget the oldest turns, first those that are undone."""
        held = [(turns, key) for turns in (self._undone, self._turns) for key in turns]
        sizes = [turns[key].size() for turns, key in held]
        for number, (turns, key) in enumerate(held[:-1]):
            if len(held) - number <= KEEP_TURNS and sum(sizes[number:]) <= KEEP_BYTES:
                break
            del turns[key]

    def turns(self, session: str) -> list[int]:
        """Return the turns of a session that ran code and whose variables are kept."""
        return [turn for name, turn in (*self._turns, *self._undone) if name == session]

    def changes(self, session: str, turn: int) -> TurnVariables:
        """Return a turn's changes; empty if there are none, they are undone or no longer stored."""
        return self._turns.get((session, turn), TurnVariables())

    def undo(
        self, session: str, turn: int, *, force: bool = False, redo: bool = False
    ) -> VariablesRestored:
        """Restore the variables that a turn changed, except those changed since.

        With `force`, those too. With `redo`, restore what an undo of the turn changed.
        """
        turns, others = self._turns, self._undone
        if redo:
            turns, others = others, turns
        found = turns.get((session, turn))
        if found is None:
            return VariablesRestored()
        reverse = others.setdefault((session, turn), TurnVariables())
        reverse.fresh.update(found.fresh)
        undo = _Undo(self._namespace, found, reverse, force)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns when a shape is set
            undo.run()
        notes = [f"`{name}` was not saved: {what}" for name, what in found.lost.items()]
        found.lost.clear()
        if not found:
            del turns[(session, turn)]
        return VariablesRestored(
            done=tuple(UndoLine(name, text) for name, text in undo.done.items()),
            conflicts=tuple(UndoLine(name, text) for name, text in undo.conflicts.items()),
            notes=tuple(notes),
        )


@dataclass(slots=True)
class _Undo:
    """One undo of a turn; records the reverse changes for a redo."""

    _namespace: dict[str, Foreign]
    _turn: TurnVariables
    _reverse: TurnVariables
    _force: bool
    done: dict[str, str] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        fresh = () if self._force else self._turn.fresh.values()
        edited = {saved.root for saved in fresh if not saved.same()}
        for key, each in [*self._turn.objects.items()]:
            if self._object(key, each):
                del self._turn.objects[key]
        for name, each in [*self._turn.bindings.items()]:
            if self._binding(name, each, edited):
                del self._turn.bindings[name]
        for index, each in [*self._turn.settings.items()]:
            if self._setting(index, each):
                del self._turn.settings[index]

    def _object(self, key: int, each: Changed) -> bool:
        saved: Saved = each.before
        name = ", ".join(each.names[:3]) or saved.root
        if saved.same():
            return True
        if not self._force and (each.after is None or not each.after.same()):
            self.conflicts[name] = _SINCE
            return False
        try:
            saved.kind.restore(saved.value, saved.state)
        except Exception as error:  # an object may refuse its old state
            why = str(error) if isinstance(error, CannotKeep) else type(error).__name__
            self.conflicts[name] = f"{_DIFFERS}: {why}"
            return False
        if not saved.same():
            self.conflicts[name] = f"{_DIFFERS}: {named_type(saved.value)}"
            return False
        self.done.setdefault(name, "restored")
        if each.after is None:
            self._reverse.lost[name] = "its new state cannot be restored"
        else:
            # A copy, because the object may now share parts with the state that it was given.
            after = None
            with suppress(Exception):  # in that case, later changes to it are not noticed
                after = saved.saved_now()
            self._reverse.objects[key] = Changed(each.start, each.after, after, each.names)
        return True

    def _binding(self, name: str, each: Changed, edited: set[str]) -> bool:
        now = self._namespace.get(name, MISSING)
        if now is each.before:
            return True
        if not self._force and (now is not each.after or name in edited):
            self.conflicts[name] = _SINCE
            return False
        if each.before is MISSING:
            del self._namespace[name]
            self.done[name] = "removed"
        else:
            self._namespace[name] = each.before
            self.done[name] = "restored" if now is not MISSING else "brought back"
        self._reverse.bindings[name] = Changed(each.start, now, each.before, each.names)
        return True

    def _setting(self, index: int, each: Changed) -> bool:
        setting = SETTINGS[index]
        now = setting.value()
        if setting.same(now, each.before):
            return True
        if not self._force and not setting.same(now, each.after):
            self.conflicts[setting.name] = _SINCE
            return False
        try:
            setting.write(each.before)
        except Exception as error:  # such as a deleted directory
            self.conflicts[setting.name] = f"{_DIFFERS}: {type(error).__name__}"
            return False
        self.done[setting.name] = "restored"
        self._reverse.settings[index] = Changed(each.start, now, each.before)
        return True


_histories: WeakKeyDictionary[Shell, VariableHistory] = WeakKeyDictionary()


def history_of(shell: Shell) -> VariableHistory:
    """Return the history of a kernel's variables."""
    return _histories.setdefault(shell, VariableHistory(shell.user_ns))


MENTIONED = 8
"""Maximum variables in a note about changes."""


def mention(shell: Shell, changes: TurnVariables) -> str:
    """Return a note for the model about new and changed variables, or ""."""
    known = user_variables(shell.user_ns, shell.user_ns_hidden)
    names = [name for name in changes.names() if name in known]
    added = [name for name in names if changes.is_new(name)]
    parts = []
    altered = [name for name in names if name not in added]
    for title, listed in (("new", added), ("changed", altered)):
        values = {name: shell.user_ns.get(name) for name in listed[:MENTIONED]}
        shown = [brief(each, values[each.name]) for each in summaries(values)]
        if len(listed) > MENTIONED:
            shown.append(f"{len(listed) - MENTIONED} more")
        if shown:
            parts.append(f"{title} {'; '.join(shown)}")
    return f"[{' | '.join(parts)}]" if parts else ""
