"""A script is read for what it says, and no character in it ends the process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hermes_nb.safety.commands.shell_syntax import read
from hermes_nb.safety.policy import assess
from hypothesis import given
from hypothesis import strategies as st

HOSTILE = """
from hermes_nb.safety.policy import assess
for code in (*range(0x10000, 0x110000, 4_999), 0x31860, 0xfec04):
    for script in ("{%s", "${%s}", "$%s", "%s=1", "[ -f %s ]", "x[%s]=2", "<<%s", "!(%s"):
        assess(script % chr(code))
print("alive")
"""


def test_no_character_ends_the_process():
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def words(script):
    return [
        [word.text for word in command.words]
        for command in read(script, deadline=time.monotonic() + 60).commands
    ]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("rm -rf 数据 './é ü' \"Ж и\"", [["rm", "-rf", "数据", "./é ü", "Ж и"]]),
        ('x=数; echo $x-é "${x}𱡀"', [[], ["echo", "数-é", "数𱡀"]]),
        ("for x in ä 𱡀; do echo $x; done", [["echo", "ä"], ["echo", "𱡀"]]),
        ("é=1 rm a", [["é=1", "rm", "a"]]),
        ("echo a\u00a0b\u3000c", [["echo", "a\u00a0b\u3000c"]]),
        ("cat <<E\nä\nE\necho ß", [["cat"], ["echo", "ß"]]),
        ("echo $'ä\\n𱡀' {é,ü}", [["echo", "ä\n𱡀", "é", "ü"]]),
    ],
)
def test_words_are_read_as_they_stand(script, expected):
    assert [found for found in words(script) if found] == [each for each in expected if each]


@pytest.mark.parametrize("end", ["Ж", "'Ж'", '"a Ж"', "\\Ж", "\\\nЖ", "a'b'Ж"])
def test_nothing_hides_behind_the_end_of_a_here_document(end):
    script = f"cat <<{end}\nä\ncat <<EOF\nЖ\nls\nEOF\n"
    assert read(script, deadline=time.monotonic() + 60).unsure
    assert assess(script).decision != "allow"


@pytest.mark.parametrize("script", ["cat <<E\nä\nE", "cat <<< ä", "echo ä; cat <<E\nx\nE"])
def test_other_here_documents_are_clear(script):
    assert not read(script, deadline=time.monotonic() + 60).unsure


@given(st.text(st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), min_size=1))
def test_a_word_beyond_ascii_is_one_word(word):
    assert words(f"echo {word}") == [["echo", word]]
