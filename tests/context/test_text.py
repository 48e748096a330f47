"""The parts that read and cut text: facts, ledger, transcript, pruning."""

from __future__ import annotations

import json

import pytest
from hermes_nb.context.boundaries import (
    MOST_NOTED,
    SHORT,
    flat,
    group_of,
    grouped,
    is_shortened,
    position_of,
    shortened,
)
from hermes_nb.context.ledger import (
    Fact,
    clipped,
    find_facts,
    ledger,
    read_ledger,
    reason,
    weigh,
)
from hermes_nb.context.pruning import Pruner, ending
from hermes_nb.context.summary import chunked, cost
from hermes_nb.core.json_values import dumps
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.text import estimate_tokens
from hermes_nb.safety.redact import redact
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import every_call_has_one_result
from tests.context.conversations import sessions, work
from tests.cpu import within

SECTIONS = st.sampled_from(["asked", "said", "run", "files", "seen"])
LINES = st.text(
    st.characters(blacklist_characters="\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
    min_size=1,
    max_size=80,
)


@given(sessions(12))
@settings(max_examples=40)
def test_groups_are_valid_and_lose_nothing_valid(messages):
    groups = grouped(messages)
    out = flat(groups)
    assert every_call_has_one_result(out)
    assert grouped(out) == groups
    assert [m for m in messages if m.role != "tool"] == [m for m in out if m.role != "tool"]


def test_of_two_results_of_a_call_the_first_one_stays():
    read = ToolCall(id="c", name="read_file", arguments={"path": "a.csv"})
    asked = Message.assistant("", calls=[read])
    first, second = Message.tool(read, "1,2"), Message.tool(read, "3,4")
    assert flat(grouped([Message.user("Look."), asked, first, second])) == [
        *(Message.user("Look."), asked, first)
    ]


@given(sessions(12), st.booleans())
@settings(max_examples=80)
def test_pruned_results_are_short_and_stay_so(messages, noted):
    pruner = Pruner(lambda _: 17, lambda position: f"see {position}")
    groups = grouped(messages)
    lines = [line for message in messages for line in message.text.splitlines()[:40] if line]
    pruner.noted = {id(m): lines for m in flat(groups)} if noted else {}
    pruned = pruner.prune(groups)
    for message, old in zip(flat(pruned), flat(groups), strict=True):
        if message.role == "tool" and message is not old:
            assert is_shortened(message.text)
            if "\n" in message.text:  # cut further, its line stays and says where the whole is
                assert position_of(pruner.shorter_result(message, 40).text) == 17
            assert position_of(message.text) == 17
            assert len(message.text) <= SHORT + noted * MOST_NOTED
        assert message.role != "tool" or message is not old or len(message.text) <= SHORT
        for call in message.calls:
            assert json.loads(call.arguments_json()) == json.loads(dumps(call.arguments))
    again = pruner.prune(pruned)
    assert all(new is old for new, old in zip(again, pruned, strict=True))


@given(
    st.lists(
        st.builds(
            Fact,
            section=SECTIONS,
            text=LINES.filter(str.strip),
            weight=st.floats(0.3, 5),
            source=st.integers(0, 9),
        ),
        max_size=60,
    ),
    st.integers(50, 2_000),
)
@settings(max_examples=60)
def test_a_ledger_fits_and_reads_back(facts, tokens):
    text = ledger(facts, tokens=tokens, messages=10)
    assert len(text) <= tokens * 3.5 + 200
    body, read = read_ledger(f"before\n\n{text}" if text else "before")
    assert body == "before"
    texts = {redact(f.text) for f in facts}
    assert all(redact(f.text) in texts for f in read)
    if tokens > 1_800 and sum(len(f.text) + 3 for f in facts) < 4_000:
        assert len(read) == len({(f.section, f.text) for f in facts})


@given(st.lists(st.text(max_size=200), max_size=20), st.integers(2, 200))
def test_chunks_hold_everything_and_fit(texts, tokens):
    chunks = chunked(texts, tokens)
    assert all(cost(chunk) <= tokens + 1 for chunk in chunks)
    assert "".join(chunks).replace("\n", "") == "".join(texts).replace("\n", "")


@given(LINES, st.one_of(st.none(), st.integers(0, 10**9)))
@example("x" * 170, 10**9)
def test_a_shortened_line_remembers_its_position(line, position):
    text = shortened(line, position)
    assert is_shortened(text)
    assert position_of(text) == position


def test_the_odd_line_is_the_news():
    messages = work(12, lines=400, fact_at=5, fact="NOTE: the staging db listens on port 54329")
    found = [fact.text for fact in find_facts(messages) if fact.section == "seen"]
    assert "NOTE: the staging db listens on port 54329" in found
    assert len(found) < 40


def test_a_short_result_is_kept_complete_with_its_call():
    call = ToolCall(id="a", name="terminal", arguments={"command": "wc -l trips.csv"})
    messages = [Message.user("Count."), Message.assistant(calls=[call])]
    text = ledger(find_facts([*messages, Message.tool(call, "4711 trips.csv")]), tokens=1_000)
    assert "- terminal `wc -l trips.csv` → 4711 trips.csv" in text
    assert "wc -l trips.csv` → 4711" in ledger(read_ledger(text)[1], tokens=1_000)


@pytest.mark.parametrize("later", ["What is wrong at Gasworks?", "Go on."])
def test_a_row_that_later_messages_name_is_kept_before_its_neighbours(later):
    rows = [f"{'Opera Pier Gasworks Canal'.split()[n % 4]} {n * 7 % 90}" for n in range(200)]
    rows[101] = "Canal 55 Velodrome"
    call = ToolCall(id="a", name="run_python", arguments={"code": "trips"})
    calls = [Message.assistant(calls=[call]), Message.tool(call, "\n".join(rows))]
    found = find_facts([Message.user("Show trips."), *calls], [Message.user(later)])
    assert rows[101] in [fact.text for fact in found], "a word that occurs nowhere else"
    rows[60] = "Zoo 12"
    again = [Message.assistant(calls=[call]), Message.tool(call, "\n".join(rows))]
    found = find_facts([Message.user("Zoo?"), *again], [Message.user("Is the zoo right?")])
    assert "Zoo 12" in [fact.text for fact in found], "a word that a later message uses"


@given(st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=30)
def test_no_window_contains_half_of_a_secret(before, after):
    key = "sk-ant-api03-" + "Zx81" * 20
    line = f"{'la ' * before}Gasworks token {key} {'le ' * after}"
    call = ToolCall(id="a", name="terminal", arguments={"command": "cat log"})
    messages = [Message.assistant(calls=[call]), Message.tool(call, line + "\nx" * 400)]
    text = ledger(find_facts(messages, [Message.user("Gasworks?")]), tokens=4_000)
    assert "Zx81Zx81" not in text


@given(sessions(12))
@settings(max_examples=30)
def test_facts_are_deterministic_and_a_ledger_is_stable_over_rounds(messages):
    valid = flat(grouped(messages))
    text = ledger(find_facts(valid), tokens=1_000)
    assert text == ledger(find_facts(list(valid)), tokens=1_000)
    again = ledger(read_ledger(text)[1], tokens=1_000)
    assert sorted(read_ledger(again)[1], key=str) == sorted(read_ledger(text)[1], key=str)


def test_endings():
    call = ToolCall(id="a", name="terminal")
    for text, expected in (
        ("out\n[exit 1, 0.2 s]", "exit 1"),
        ("Command exited with code 127", "exit 127"),
        ("a\nValueError: no x", "ValueError: no x"),
        ("timed out after 30 s and was stopped", "timed out"),
        ("fine", ""),
    ):
        assert ending(Message.tool(call, text)) == expected
    assert ending(Message.tool(call, "no such file", failed=True)) == "failed: no such file"


def test_hostile_text_takes_no_longer():
    call = ToolCall(id="a", name="terminal", arguments={"command": "x"})
    for piece in (
        *("a" * 50_000, "a.b/" * 12_000, "=" * 50_000, "1 " * 25_000, "Error" * 10_000),
        "\n" * 50_000,
    ):
        messages = [Message.user(piece), Message.assistant(calls=[call]), Message.tool(call, piece)]
        within(0.5, lambda m=messages: ledger(find_facts(m), tokens=2_000))
        groups = [group_of(messages[1:])]
        within(0.5, lambda g=groups: Pruner(lambda _: None, lambda _: "gone").prune(g))
        assert estimate_tokens(messages) > 0


@pytest.mark.parametrize("unit", ["0", "a", "ab1", "a/", "A-", "1.", "~", "x@", "://", "= ", "('"])
def test_time_is_linear(unit):
    line = unit * (80_000 // len(unit))
    for judge in (weigh, reason):
        within(2, judge, line)
    assert len(within(2, clipped, line)) < 1_000


@pytest.mark.parametrize("part", ["port = 8080", "b http://a.example", "it said: error"])
def test_a_long_line_is_cut_around_what_counts(part):
    assert part in clipped(f"{'- ' * 25_000}{part}{' -' * 25_000}")
    assert reason("nothing here") == 0
