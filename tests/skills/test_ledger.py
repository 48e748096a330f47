from __future__ import annotations

import json

import pytest
from hermes_nb.skills import history as module
from hermes_nb.skills.history import SkillOrigin, UsageLog
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture
def place(tmp_path):
    return tmp_path / ".hermes_nb"


def test_events_are_counted_and_kept(place):
    ledger = UsageLog(place)
    ledger.note("draw", "made", SkillOrigin(session="s", turn=2))
    for event in ("view", "view", "use", "patch", "off"):
        ledger.note("draw", event)
    usage = UsageLog(place).of("draw")
    assert (usage.views, usage.uses, usage.patches, usage.disabled) == (2, 1, 1, True)
    assert usage.origin == SkillOrigin(session="s", turn=2)
    assert usage.made <= usage.last_used
    ledger.note("draw", "on")
    assert not UsageLog(place).of("draw").disabled


def test_a_long_log_is_folded(place, monkeypatch):
    monkeypatch.setattr(module, "FOLD_AT", 2_000)
    ledger = UsageLog(place)
    ledger.note("mail", "off")
    for _ in range(100):
        ledger.note("draw", "view")
    assert (place / "usage.jsonl").stat().st_size < 2_500
    assert UsageLog(place).of("draw").views == 100
    assert UsageLog(place).of("mail").disabled


def test_without_a_place_it_counts_in_memory(place):
    for where in (None, place / "none" / ".hermes_nb", place):
        if where == place:
            place.write_text("a file where the directory should be")
        ledger = UsageLog(where)
        ledger.note("draw", "view")
        assert ledger.of("draw").views == 1
    assert place.is_file()


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists)
LINES = st.dictionaries(
    st.sampled_from(["skill", "event", "at", "views", "uses", "turn", "session", "last_used"]),
    JSON | st.sampled_from(["draw", "sum", "view", "use"]) | st.integers(),
)


@settings(max_examples=25)
@given(st.lists(LINES.map(json.dumps) | st.text(max_size=20), max_size=8))
def test_a_damaged_log_costs_no_more_than_counts(tmp_path_factory, lines):
    place = tmp_path_factory.mktemp("ledger")
    (place / "usage.jsonl").write_text("\n".join(lines), encoding="utf-8", errors="replace")
    ledger = UsageLog(place)
    before = ledger.of("draw").views
    ledger.note("draw", "view")
    assert ledger.of("draw").views in (before, before + 1)  # a torn last line takes one with it
