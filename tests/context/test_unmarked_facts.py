"""Check the format of the sessions in bench/probes; they measure nothing here."""

from collections import Counter
from pathlib import Path

import pytest
from bench.probes.make import HALVES, HERE, Session, build, names, size

KINDS = {
    "assistant_prose",
    "one_line_result",
    "short_result",
    "table_middle",
    "log_middle",
    "code_middle",
    "user_aside",
    "paraphrased_later",
}
ROLES = {"assistant_prose": "assistant", "user_aside": "user"}
SESSIONS = [(half, name) for half in HALVES for name in names(half)]


@pytest.fixture(scope="module", params=SESSIONS, ids="/".join)
def session(request) -> Session:
    return build(*request.param)


def texts(session: Session) -> list[str]:
    """Return what is readable in each message, arguments of tool calls included."""
    return [
        " ".join(
            [m["content"], *(c["function"]["arguments"] for c in m.get("tool_calls", []))]
        ).lower()
        for m in session.messages
    ]


def test_a_needle_is_in_its_message_and_in_no_other(session):
    read = texts(session)
    for probe in session.probes:
        for alternatives in probe.needles:
            assert any(needle.lower() in read[probe.message] for needle in alternatives), probe
            for needle in alternatives:
                found = {i for i, text in enumerate(read) if needle.lower() in text}
                assert found <= {probe.message}, (probe.id, needle)


def test_facts_are_early_or_in_the_middle(session):
    before = [0]
    for message in session.messages:
        before.append(before[-1] + size(message))
    places = sorted(before[probe.message + 1] / before[-1] for probe in session.probes)
    half = len(places) // 2
    assert places[half - 1] < 0.45 < places[-half] + 0.05
    assert places[-1] < 0.85


def test_size_and_kinds(session):
    assert 120_000 <= session.tokens <= 200_000
    assert len(session.probes) >= 20
    assert {probe.kind for probe in session.probes} == KINDS
    for probe in session.probes:
        assert session.messages[probe.message]["role"] == ROLES.get(probe.kind, "tool")


def test_every_call_has_one_result(session):
    calls = [call["id"] for m in session.messages for call in m.get("tool_calls", [])]
    results = [m["tool_call_id"] for m in session.messages if m["role"] == "tool"]
    assert calls == results
    assert len(set(calls)) == len(calls)


def test_a_short_result_has_few_lines(session):
    for probe in session.probes:
        lines = len(session.messages[probe.message]["content"].splitlines())
        if probe.kind == "one_line_result":
            assert lines == 1
        if probe.kind == "short_result":
            assert 2 <= lines <= 8


def test_the_same_recipe_gives_the_same_session():
    half, name = SESSIONS[0]
    assert build(half, name) == build(half, name)


@pytest.mark.parametrize("half", HALVES)
def test_languages(half):
    languages = Counter(build(half, name).language for name in names(half))
    assert languages == {"en": 7, "de": 2, "fr": 1, "es": 1, "ja": 1}


def test_the_halves_share_no_session_and_no_bank():
    assert not set(names("tuning")) & set(names("set_aside"))
    banks = [(HERE / "banks" / f"{half}.json").read_text(encoding="utf-8") for half in HALVES]
    lines = [{line for line in bank.splitlines() if len(line) > 30} for bank in banks]
    assert not lines[0] & lines[1]


def test_what_is_committed_is_small():
    files = [path for path in Path(HERE).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
