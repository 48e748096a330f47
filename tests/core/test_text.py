"""Text within limits."""

from __future__ import annotations

import re

from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.core.text import both_ends, estimate_tokens, head_tail, latest, one_line
from hypothesis import example, given
from hypothesis import strategies as st


@given(st.text(max_size=200), st.integers(0, 120))
def test_head_and_tail_are_the_texts_own(text, limit):
    cut = head_tail(text, limit, where="/tmp/x")
    if len(text) <= limit:
        assert cut == text
        return
    head, _, tail = cut.partition("\n[... ")
    assert text.startswith(head)
    kept = tail.partition(" ...]\n")[2]
    assert text.endswith(kept)
    assert f"{len(text) - limit:,} characters dropped; the whole output is in /tmp/x" in cut
    assert len(head) + len(kept) == limit


@given(st.text(max_size=300), st.integers(1, 40))
def test_one_line_is_one_line(text, limit):
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1


@given(st.text(max_size=300), st.integers(1, 40))
@example("00…", 2)
def test_a_line_cut_in_its_middle_has_both_ends(text, limit):
    line, whole = both_ends(text, limit), " ".join(text.split())
    assert len(line) <= limit
    if len(whole) <= limit:
        assert line == whole
        return
    head, tail = line.split("…", 1) if "…" not in whole else (line[:1], line[-1:])
    assert whole.startswith(head) or limit <= 2  # which leaves no room for a head
    assert whole.endswith(tail) or limit == 1


def test_names_that_differ_at_their_ends_stay_different():
    names = [f"a long name about penguins and other birds {n}.md" for n in (1, 2)]
    assert [both_ends(name, 24) for name in names] == [
        "a long name…r birds 1.md",
        "a long name…r birds 2.md",
    ]


def test_estimates_grow_with_everything_that_is_sent():
    call = ToolCall(id="1", name="t", arguments={"a": "x" * 260})
    messages = [
        Message.user("x" * 350),
        Message.assistant(calls=[call]),
        Message.user("", images=[Image("aGk=")]),
    ]
    tokens = [estimate_tokens(messages[: n + 1]) for n in range(3)]
    assert tokens[0] == 104
    assert 100 < tokens[1] - tokens[0] < 120
    assert tokens[2] - tokens[1] > 1_000


def test_canonical_json_does_not_depend_on_order():
    assert (
        canonical_json({"b": 1, "a": "é"})
        == canonical_json({"a": "é", "b": 1})
        == '{"a":"é","b":1}'
    )


@given(st.text("ab1 \n\r/-", max_size=60), st.integers(1, 40))
def test_the_end_of_a_text_that_goes_on_cuts_no_word(text, limit):
    end = latest(text, limit)
    assert len(end) <= limit
    whole = re.sub(r"[\w/-]{8,}$", "…", text)  # a long word at the very end may go on
    assert whole.endswith(end)
    before = whole[: len(whole) - len(end)]
    assert not end or not before or before[-1] in " \n\r"


def test_half_a_secret_at_either_end_is_left_out():
    assert latest("sk-abcdefgh more\nnext sk-abcdefgh", 28) == "next …"
    assert latest("a line\r sk-abcdefgh 12 %", 22) == " sk-abcdefgh 12 %"
    assert latest("x" * 50, 20) == ""
