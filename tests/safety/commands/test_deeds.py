"""Why a command asks, in words that whoever is asked knows."""

from __future__ import annotations

import pytest
from hermes_nb.safety.policy import assess


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("rm -rf build; echo cleaned", "it deletes build"),
        ("rm a b c d", "it deletes a, b and 2 more"),
        ("rm -i", "it deletes something"),
        ("make report", "make does what a Makefile says"),
        ("git commit -m x", "git commit makes a commit"),
        ("git frob", "git frob may change the repository"),
        ("./run.sh", "it runs the program './run.sh'"),
        ("frobnicate -x", "Hermes does not know what 'frobnicate' does; it may change something"),
        ("find . -delete", "find -delete deletes, writes or runs something"),
        ("echo hi > out.txt", "it writes to 'out.txt'"),
    ],
)
def test_a_question_says_what_the_command_does(command, why):
    assert assess(command).reason == why
    assert assess(command).decision == "ask"
