from __future__ import annotations

from hermes_nb.memory.rows import Arrangement, matched, packed, unpacked
from hypothesis import given
from hypothesis import strategies as st

texts = st.lists(st.sampled_from("abc"), max_size=8)


@given(before=texts, after=texts)
def test_each_text_is_matched_as_often_as_it_can_be(before, after):
    found = matched(before, after)
    used = [index for index in found if index is not None]
    assert len(found) == len(after)
    assert len(set(used)) == len(used)
    for text, index in zip(after, found, strict=True):
        assert index is None or before[index] == text
    for text in "abc":
        assert sum(before[index] == text for index in used) == min(
            before.count(text), after.count(text)
        )


@given(head=texts, middle=texts, tail=texts)
def test_a_common_beginning_and_a_common_end_stay_in_place(head, middle, tail):
    before = [*head, *middle, *tail]
    found = matched(before, [*head, "summary", *tail])
    start = len(before) - len(tail)
    assert found[: len(head)] == list(range(len(head)))
    expected = list(range(start, len(before)))
    at_the_end = found[len(head) + 1 :]
    # Where head and tail meet in equal texts, either reading of the same conversation is right.
    assert at_the_end == expected or [before[i] for i in at_the_end] == tail


def test_the_later_of_two_equal_tails_is_kept():
    assert matched(["ok", "x", "ok"], ["summary", "ok"]) == [None, 2]


@given(st.lists(st.integers(0, 30)))
def test_positions_come_back(positions):
    assert unpacked(packed(positions)) == tuple(positions)


def test_a_long_run_is_short():
    assert packed([0, 1, *range(5, 1_000), 3]) == "[[0,1],[5,999],[3,3]]"


def test_what_follows_comes_behind():
    arrangement = Arrangement(start=5, stop=6, order=(0, 5, 3, 4))
    assert arrangement.following([0, 3, 4, 5, 6, 7]) == [0, 5, 3, 4, 6, 7]
    assert arrangement.following([0, 4, 7]) == [0, 4, 7]
