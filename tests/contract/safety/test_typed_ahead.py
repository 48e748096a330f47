"""What is typed into a terminal before a question is no answer to it."""

from __future__ import annotations

import os
import sys

import pytest

pty = pytest.importorskip("pty")

WAYS = {
    "a shell": "from hermes_nb.notebook.approval import ask_user as ask",
    "the command line": "from hermes_nb.cli.terminal import ask_on_terminal as ask",
}
ASKS = """
import select, sys
{way}
print("thinking", flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    pass
print("answer:", repr(ask("really? ").strip()), flush=True)
"""


def until(terminal, words):
    """Read what the terminal shows until these words are there; raise `OSError` at its end."""
    shown = ""
    while words not in shown:
        shown += os.read(terminal, 4096).decode()
    return shown


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_yes_that_was_typed_before_the_question_does_not_count(way):
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", ASKS.format(way=way)])
    try:
        until(terminal, "thinking")
        os.write(terminal, b"y\n")
        until(terminal, "really?")
        os.write(terminal, b"no\n")
        until(terminal, "answer: 'no'")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
