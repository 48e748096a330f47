"""A script whose model runs shell commands, with nobody there to be asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.provider import Story, told_by
from tests.loopback import Loopback, calls, says


@contextmanager
def nobody_to_ask(server: Loopback, home: Path, work: Path) -> Iterator[Story]:
    """Yield a story in `work`, in the mode that asks."""
    with pytest.MonkeyPatch.context() as patch, told_by(server, home, work, approve="ask") as story:
        patch.chdir(work)
        yield story


def results_of(story: Story, commands: Sequence[str], *, timeout: int = 5) -> list[str]:
    """Let the model run commands, and return what it was told of each."""
    asked = [("terminal", {"command": each, "timeout": timeout}) for each in commands]
    story.ask(calls(*asked), says("Done."))
    return story.results[-len(commands) :]


def refused(result: str) -> bool:
    """Say whether a command was not run because it would have been asked about."""
    return "was not run" in result
