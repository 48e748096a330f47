"""What a shell would evaluate on its way is not run unasked, though it looks like reading."""

from __future__ import annotations

import pytest

from tests.contract.safety.holes import ARITHMETIC, make_holes
from tests.faults.unasked import nobody_to_ask, results_of


@pytest.mark.parametrize("start", range(0, len(ARITHMETIC), 14))
def test_66_values_do_not_run(server, home, tmp_path, start):
    work = make_holes(tmp_path)
    commands = ARITHMETIC[start : start + 14]
    with nobody_to_ask(server, home, work) as story:
        results = results_of(story, commands)
    assert len(results) == len(commands)
    assert not list(tmp_path.rglob("PWN"))


def test_66_what_only_reads_goes_on(server, home, tmp_path):
    work = make_holes(tmp_path)
    with nobody_to_ask(server, home, work) as story:
        (told,) = results_of(story, ["head -1 notes.txt | tr a-z A-Z && echo 'a  b'"])
    assert "ALPHA\na  b" in told
