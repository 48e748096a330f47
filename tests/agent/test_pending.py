"""What waits for approval: kept through everything, bounded, decided on once."""

from __future__ import annotations

import json
import string

import pytest
from hermes_nb.agent.proposals import (
    DAYS,
    MOST,
    NAME,
    REFUSED_DAYS,
    MemoryWrite,
    NotKept,
    Pending,
    SkillWrite,
    alike,
    from_json,
    to_json,
)
from hermes_nb.memory.entries import Operation
from hermes_nb.memory.history import WriteOrigin
from hermes_nb.skills.editing import SkillChange
from hermes_nb.skills.history import SkillOrigin
from hypothesis import given
from hypothesis import strategies as st

FROM = WriteOrigin(session="s1", turn=3, notebook="/n.ipynb", source="review")
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


def note(text, **details):
    return MemoryWrite(target="memory", steps=(Operation(action="add", content=text, **details),))


def patch(old, new, name="a-skill"):
    change = SkillChange(action="patch", name=name, old_string=old, new_string=new)
    return SkillWrite(change=change)


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(home, clock):
    return Pending(home, clock=clock)


def test_nothing_is_made_before_something_waits(queue, home):
    assert queue.waiting() == []
    assert not home.exists()


def test_what_waits_is_there_for_another_process(queue, home, clock):
    made = queue.propose(note("Data lives in `data/`."), FROM)
    assert (made.number, made.kind) == (1, "memory")
    assert Pending(home, clock=clock).waiting() == [made]
    assert (home / NAME).stat().st_mode & 0o777 == 0o600


def test_numbers_are_never_given_twice(queue):
    for n in range(3):
        queue.propose(note(f"fact {n}"), FROM)
    for number in (1, 3):
        with queue.deciding(number) as decision:
            decision.done()
    assert queue.propose(note("another"), FROM).number == 4
    assert [each.number for each in queue.waiting()] == [2, 4]


def test_the_same_twice_is_refused_and_named(queue):
    queue.propose(note("The user likes tea."), FROM)
    for again in ("The user likes tea.", "User likes tea"):
        with pytest.raises(NotKept, match="as 1"):
            queue.propose(note(again), FROM)
    queue.propose(patch("a", "b"), FROM)
    with pytest.raises(NotKept, match="as 2"):
        queue.propose(patch("a", "b"), FROM)
    queue.propose(patch("a", "c"), FROM)


def test_what_was_refused_is_not_brought_up_again_for_a_while(queue, clock):
    queue.propose(note("Likes tea."), FROM)
    with queue.deciding(1) as decision:
        decision.refuse()
    assert queue.waiting() == []
    with pytest.raises(NotKept, match="already rejected"):
        queue.propose(note("Likes tea."), FROM)
    clock.now += REFUSED_DAYS * 86_400 + 1
    assert queue.propose(note("Likes tea."), FROM)


def test_it_is_bounded_in_number_size_and_age(queue, clock):
    for n in range(MOST):
        queue.propose(note(f"fact number {n}"), FROM)
    with pytest.raises(NotKept, match="no more can be added"):
        queue.propose(note("one more"), FROM)
    clock.now += DAYS * 86_400 + 1
    assert queue.waiting() == []
    large = "x" * 300_000
    for n in range(3):
        queue.propose(patch("a", f"{n}{large}"), FROM)
    with pytest.raises(NotKept, match="no more can be added"):
        queue.propose(patch("a", f"3{large}"), FROM)


def test_a_clock_that_goes_back_forgets_nothing(queue, clock):
    queue.propose(note("kept"), FROM)
    clock.now -= 400 * 86_400
    assert len(queue.waiting()) == 1


@pytest.mark.parametrize("write", [note(f"the key is {KEY}"), patch("a", f"key = '{KEY}'")])
def test_a_secret_is_never_put_down(queue, home, write):
    with pytest.raises(NotKept, match="secret"):
        queue.propose(write, FROM)
    assert not home.exists() or KEY not in (home / NAME).read_text()


def test_what_waits_no_more_cannot_be_decided_on(queue):
    with pytest.raises(LookupError, match="there is no pending change 7"), queue.deciding(7):
        pass


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"\xff\xfe", b'{"waiting": 3}', b"[" * 100_000, b'{"waiting": [{}]}']
)
def test_a_damaged_file_costs_no_turn_and_is_kept(queue, home, data):
    home.mkdir()
    (home / NAME).write_bytes(data)
    assert queue.waiting() == []
    assert queue.propose(note("after"), FROM)
    assert [each.write for each in queue.waiting()] == [note("after")]
    (aside,) = home.glob(f"{NAME}.damaged-*")
    assert aside.read_bytes() == data


def test_what_one_hand_spoilt_leaves_the_others(queue, home):
    queue.propose(note("one"), FROM)
    queue.propose(note("two"), FROM)
    item = json.loads((home / NAME).read_text())
    item["waiting"][0]["write"]["steps"] = "nonsense"
    (home / NAME).write_text(json.dumps(item))
    assert [each.number for each in queue.waiting()] == [2]
    assert queue.propose(note("three"), FROM).number == 3


def test_an_error_while_deciding_leaves_everything_as_it_was(queue):
    queue.propose(note("one"), FROM)
    before = queue.waiting()
    with pytest.raises(ZeroDivisionError), queue.deciding(1):
        raise ZeroDivisionError
    assert queue.waiting() == before


TEXTS = st.text(max_size=40)
CHANGES = st.builds(
    SkillChange,
    action=st.sampled_from(["create", "patch", "write_file", "delete"]),
    name=st.text(string.ascii_lowercase, min_size=1, max_size=10),
    content=st.none() | TEXTS,
    old_string=st.none() | TEXTS,
    replace_all=st.booleans(),
    seen=st.none() | TEXTS,
    origin=st.builds(SkillOrigin, session=TEXTS, turn=st.integers(0, 99)),
)
STEPS = st.builds(
    Operation, action=st.sampled_from(["add", "replace", "remove"]), content=TEXTS, old_text=TEXTS
)
WRITES = st.builds(SkillWrite, change=CHANGES) | st.builds(
    MemoryWrite,
    target=st.sampled_from(["memory", "user"]),
    steps=st.lists(STEPS, min_size=1, max_size=3).map(tuple),
)


@given(write=WRITES)
def test_a_proposal_survives_json(write, tmp_path_factory):
    queue = Pending(tmp_path_factory.mktemp("home"))
    made = queue.propose(write, FROM)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made
    assert queue.waiting() == [made]
    assert alike(write, write)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    spoilt=JSON,
    place=st.sampled_from(["id", "number", "at", "write", "origin", "begun", "problem", "kind"]),
)
def test_whatever_stands_there_is_a_proposal_or_nothing(spoilt, place, tmp_path_factory):
    made = Pending(tmp_path_factory.mktemp("home")).propose(note("x"), FROM)
    item = {**to_json(made), place: spoilt}
    found = from_json(item)
    assert found is None or from_json(to_json(found)) == found
    assert from_json(spoilt) is None or isinstance(spoilt, dict)
