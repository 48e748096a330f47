from __future__ import annotations

import pytest
from hermes_nb.tools.process_output import plain
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        *(("a\r\nb\n", "a\nb\n"), ("10%\r50%\r100%\nok", "100%\nok"), ("50%\r100%\r", "100%")),
        *(("50%\r\x1b[K", "50%"), ("\x1b[1;31mred\x1b[0m", "red")),
        ("\x1b]0;title\x07x\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "xlink"),
        *(("\x1bP1$r0m\x1b\\x\x1b(B\x1b=y\x1b", "xy"), ("\x9b31mx", "x"), ("N\bNA\bA", "NA")),
        *(("a\x00\x07b\tc", "ab\tc"), ("plain é 漢\n", "plain é 漢\n")),
    ],
)
def test_plain(text, seen):
    assert plain(text) == seen


@given(st.text(st.sampled_from("\x1b[]PX;m0\\\x07\r\n\b a\x9b"), max_size=60))
def test_nothing_a_terminal_acts_on_is_left(text):
    seen = plain(text)
    assert not set(seen) & set("\x1b\r\x9b\b\x07")
    assert plain(seen) == seen


@pytest.mark.parametrize("piece", ["\x1b]", "\x1bP", "\x1b[", "\r", "a\b", "\b", "\x1b[0;"])
def test_it_is_linear(piece):
    within(3, plain, piece * 300_000)
