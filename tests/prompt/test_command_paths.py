from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from hermes_nb.prompt.hints import Mention, mention, paths_in
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cpu import within


def certain(command):
    return [found.path for found in paths_in(command) if found.sure]


def words(command):
    return [found.path for found in paths_in(command)]


MENTIONED = json.loads(Path(__file__).with_name("command_paths.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("command", "paths"), MENTIONED)
def test_what_a_command_mentions(command, paths):
    assert certain(command) == paths


def test_plain_words_count_only_as_directories():
    assert list(paths_in("ls backend")) == [Mention("backend", sure=False)]
    assert words("make") == []
    assert words("git -C backend status --long") == ["backend", "status"]
    assert words("cd a && ls b") == ["a", "a/b", "b"]


def test_home_is_a_place_and_other_peoples_are_names(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert certain("cat ~/x/y") == ["/home/me/x/y"]
    assert mention("~", sure=True) == Mention("/home/me")
    assert mention("~$report.xlsx", sure=True) == Mention("~$report.xlsx")


@given(st.text(max_size=200) | st.text(alphabet="cd ab/'\"\\$`(){}<>;&|\n#=-~*", max_size=200))
@example("cd \ud800/x")
@example("\0/\0")
def test_no_command_is_too_bad(command):
    for found in paths_in(command):
        assert found.path
        assert "\0" not in found.path


@pytest.mark.parametrize(
    "unit",
    ["a/b ", "'", '"', "'\"", '"\\', "\\", "<<A\n", "<<'", "(", "x", "cd a;", "# ", "a=", "$("],
)
def test_a_megabyte_costs_no_more_than_its_beginning(unit):
    command = unit * (1_000_000 // len(unit))
    within(0.25, lambda: list(islice(paths_in(command), 256)))
