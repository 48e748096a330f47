"""Words stand for what the shell makes of them, as far as that is looked at."""

from __future__ import annotations

import time
from itertools import product

from hermes_nb.safety.commands.shell_syntax import read
from hermes_nb.safety.commands.shell_words import _ALTERNATIVES
from hermes_nb.safety.policy import assess
from hypothesis import assume, given
from hypothesis import strategies as st


def script(text):
    return read(text, deadline=time.monotonic() + 60)


def expanded(tree):
    """Return what a tree of alternatives stands for; a list is a row, a tuple has alternatives."""
    if isinstance(tree, str):
        return [tree]
    if isinstance(tree, tuple):
        return [text for each in tree for text in expanded(each)]
    return ["".join(row) for row in product(*map(expanded, tree))]


def written(tree):
    if isinstance(tree, str):
        return tree
    if isinstance(tree, tuple):
        return "{" + ",".join(map(written, tree)) + "}"
    return "".join(map(written, tree))


LETTERS = st.text("xyz", min_size=1, max_size=2)
ROWS = st.recursive(
    LETTERS,
    lambda inner: st.lists(
        inner | st.lists(inner, min_size=2, max_size=4).map(tuple), min_size=1, max_size=4
    ),
    max_leaves=12,
)


@given(ROWS)
def test_braces_stand_for_all_alternatives_in_order(row):
    expected = expanded(["a", row])
    assume(len(expected) <= _ALTERNATIVES)
    (command,) = script(f"echo {written(['a', row])}").commands
    assert [word.text for word in command.words[1:]] == expected


@given(st.text("{},ab", max_size=12))
def test_braces_that_make_no_group_are_text(text):
    assume("{" not in text or "}" not in text[text.index("{") :] or "," not in text)
    commands = script(f"echo 'x'{text}").commands
    assert commands[0].words[1].text.startswith("x")


def test_more_alternatives_than_are_looked_at_are_a_reason_to_ask():
    many = "{" + ",".join(map(str, range(_ALTERNATIVES))) + ",/}"
    found = script(f"echo {many}")
    assert len(found.commands[0].words) == 1 + _ALTERNATIVES
    assert found.unsure
    assert assess(f"echo {many}").decision == "ask"
    assert not script("echo {" + ",".join(map(str, range(_ALTERNATIVES))) + "}").unsure
