"""Describe the variables that a turn changed: type, shape, columns and three values that differ.

Before and after are texts whose first line describes the value; the lines below list what differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, zip_longest

from hermes_nb.agent.undo.changes import Change
from hermes_nb.core.text import one_line
from hermes_nb.notebook.execute.library_state import same_array
from hermes_nb.notebook.execute.snapshot import Saved
from hermes_nb.notebook.execute.state import equal
from hermes_nb.notebook.execute.variable_history import MISSING, TurnVariables, history_of
from hermes_nb.notebook.interrupt import TimeLimit, user_code
from hermes_nb.notebook.previews import (
    HIDDEN,
    columns_of,
    is_array,
    is_series,
    is_table,
    names_a_secret,
    preview,
    shape_of,
    type_name,
)
from hermes_nb.notebook.shell import Foreign, Shell
from hermes_nb.notebook.variables import user_variables
from hermes_nb.safety.redact import redact

VALUES = 3
"""Maximum values that are shown before and after."""
_VALUE = 80
BRIEF = 40
"""Maximum characters of each side of a brief description."""
_SECONDS = 0.5

Pair = tuple[str, str]
"""A line before and after; "" if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableChange:
    """One variable that a turn changed."""

    name: str
    """The variable's name."""
    before: str
    """Description of the value before the turn, in one or more lines; "" if there was none."""
    after: str
    """Description of the value after the turn; "" if it was deleted."""

    def as_change(self) -> Change:
        """Return it in the form of a changed file."""
        kind = "edited" if self.before and self.after else "added" if self.after else "removed"
        return Change(name=self.name, kind=kind, before=self.before, after=self.after)  # type: ignore[arg-type]


def changes(shell: Shell, session: str, turn: int) -> list[VariableChange]:
    """Return the variables that a turn changed; empty if undone or if the kernel was restarted.

    Modules and imported functions are left out.
    """
    found = history_of(shell).changes(session, turn)
    own = user_variables(
        {name: _after(found, name, shell.user_ns) for name in found.names()}, shell.user_ns_hidden
    )
    parts = []
    for name, after in own.items():
        before = found.bindings[name].before if name in found.bindings else after
        if name in found.bindings and after is MISSING and not user_variables({name: before}):
            continue
        change = VariableChange(**_texts(name, before, after, found))
        parts += [change] if change.before != change.after else []  # else, computed again
    return parts


def not_saved(shell: Shell, session: str, turn: int) -> list[Change]:
    """Return the variables that a turn's code may have changed and undo cannot restore."""
    lost = history_of(shell).changes(session, turn).lost
    note = "not saved, so undo cannot restore it: {}"
    return [Change(name=n, kind="edited", note=note.format(what)) for n, what in lost.items()]


def brief_change(change: VariableChange) -> str:
    """Return a change in a few words: `df 612×6 → 591×6`, `+ model`, `− tmp`, `rows changed`."""
    old, new = (text.partition("\n")[0] for text in (change.before, change.after))
    if not (old and new):
        return f"{'−' if old else '+'} {change.name}"
    if old == new:
        return f"{change.name} changed"
    parts = [re.split(r",? ", text, maxsplit=1) for text in (old, new)]
    same = parts[0][0] == parts[1][0] and all(map(len, parts)) and len(parts[0]) == len(parts[1])
    shown = [part[-1] if same else text for part, text in zip(parts, (old, new), strict=True)]
    was, is_ = (re.sub(r"(?<=\d) x (?=\d)", "×", one_line(text, BRIEF)) for text in shown)
    return f"{change.name} {was} → {is_}"


def _after(found: TurnVariables, name: str, namespace: Mapping[str, Foreign]) -> Foreign:
    """Return the value of a variable after the turn."""
    known = found.bindings.get(name)
    return namespace.get(name, MISSING) if known is None else known.after


def _texts(name: str, before: Foreign, after: Foreign, found: TurnVariables) -> dict[str, str]:
    was, is_ = _as_saved(before, found, 0), _as_saved(after, found, 1)
    pairs: list[Pair] = [(_head(name, before, was), _head(name, after, is_))]
    with suppress(Exception, TimeLimit), user_code(_SECONDS):
        pairs += islice(_differing(name, was, is_), 4 * VALUES)
    if len(pairs) == 1 and before is after:
        pairs += islice(_inside(name, found), VALUES)
    old, new = (redact("\n".join(filter(None, side))) for side in zip(*pairs, strict=True))
    return {"name": name, "before": old, "after": new}


def _as_saved(value: Foreign, found: TurnVariables, side: int) -> Foreign:
    """Return a stand-in with the state that an object had before (0) or after (1) the turn."""
    known = found.objects.get(id(value))
    saved: Saved | None = None if known is None else (known.before, known.after)[side]
    return value if saved is None else saved.kind.shown(saved.state)


def _head(name: str, value: Foreign, shown: Foreign) -> str:
    if value is MISSING:
        return ""
    if names_a_secret(name, value):
        return HIDDEN
    if type(value) in (bool, int, float, complex, str, bytes, type(None)):
        return f"{type_name(value)} {preview(value, _VALUE)}"
    shape = shape_of(shown) if shape_of(value) else ""
    return f"{type_name(value)}, {shape}" if shape else type_name(value)


def _differing(name: str, was: Foreign, is_: Foreign) -> Iterator[Pair]:
    if hasattr(was, "to_frame") and is_series(was) and is_series(is_):
        was, is_ = was.to_frame(), is_.to_frame()
    if is_table(was) and is_table(is_):
        yield from _columns(was, is_)
        if type(was) is type(is_) and was.shape == is_.shape and hasattr(was, "iloc"):
            yield from _cells(was, is_)
    elif is_array(was) and is_array(is_) and was.shape == is_.shape:
        yield from _elements(was, is_)
    elif issubclass(type(was), dict) and issubclass(type(is_), dict):
        keys = {**was, **is_}
        items = ((key, was.get(key, MISSING), is_.get(key, MISSING)) for key in keys)
        yield from _items(name, items)
    elif type(was) is type(is_) is list:
        both = zip_longest(was, is_, fillvalue=MISSING)
        yield from _items(name, ((at, one, two) for at, (one, two) in enumerate(both)))


def _columns(was: Foreign, is_: Foreign) -> Iterator[Pair]:
    old, new = columns_of(was) or {}, columns_of(is_) or {}
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield tuple(f"{name}: {side[name]}" if name in side else "" for side in (old, new))  # type: ignore[misc]


def _cells(was: Foreign, is_: Foreign) -> Iterator[Pair]:
    left = VALUES
    for at, column in enumerate(is_.columns):
        one, two = was.iloc[:, at], is_.iloc[:, at]
        if one is two or not left or one.dtype != two.dtype:
            continue
        differs = ((one.array != two.array) & ~(one.isna() & two.isna())).to_numpy(dtype=bool)
        for row in differs.nonzero()[0][:left]:
            label = f"{column}[{preview(is_.index[row], 40)}]"
            yield (
                f"{label} = {_value(label, one.iloc[row])}",
                f"{label} = {_value(label, two.iloc[row])}",
            )
            left -= 1


def _elements(was: Foreign, is_: Foreign) -> Iterator[Pair]:
    if same_array(was, is_):
        return
    for place in zip(*(was != is_).nonzero(), strict=True):
        label = f"[{', '.join(map(str, place))}]"
        yield f"{label} = {_value('', was[place])}", f"{label} = {_value('', is_[place])}"


def _items(name: str, items: Iterator[tuple[object, object, object]]) -> Iterator[Pair]:
    differing = ((key, one, two) for key, one, two in items if not equal(one, two))
    for key, one, two in islice(differing, VALUES):
        label = f"[{preview(key, 40)}]"
        hidden = str(key) if isinstance(key, str) else name
        yield tuple(  # type: ignore[misc]
            "" if side is MISSING else f"{label} = {_value(hidden, side)}" for side in (one, two)
        )


def _value(name: str, value: Foreign) -> str:
    if names_a_secret(name, value):
        return HIDDEN
    return preview(value.item() if type(value).__module__ == "numpy" else value, _VALUE)


def _inside(name: str, found: TurnVariables) -> Iterator[Pair]:
    """Describe changed objects that a variable leads to."""
    for each in found.objects.values():
        if name in each.names and each.after is not None:
            one, two = (saved.kind.shown(saved.state) for saved in (each.before, each.after))
            kind = type_name(each.before.value)
            yield f"in it: {kind} {preview(one, _VALUE)}", f"in it: {kind} {preview(two, _VALUE)}"
