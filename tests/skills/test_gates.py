from __future__ import annotations

import pytest
from hermes_nb.skills.catalogue import Surroundings
from hermes_nb.skills.document import Gates


@pytest.mark.parametrize(
    ("platforms", "here", "closed"),
    [
        *(((), "linux", False), (("linux", "macos"), "linux", False), (("macos",), "linux", True)),
        *((("macos",), "darwin", False), (("windows",), "win32", False)),
        *((("all",), "linux", False), (("MacOS ",), "darwin", False)),
    ],
)
def test_platforms(platforms, here, closed):
    assert bool(Surroundings(platform=here).closed(Gates(platforms=platforms))) is closed


def test_tools_that_are_needed_or_stood_in_for():
    needs = Gates(requires_tools=("terminal", "web"))
    assert Surroundings().closed(needs) == ""
    assert Surroundings(tools={"terminal", "web"}).closed(needs) == ""
    assert "web" in Surroundings(tools={"terminal"}).closed(needs)
    instead = Gates(fallback_for_toolsets=("web",))
    assert Surroundings(toolsets={"files"}).closed(instead) == ""
    assert "stands in" in Surroundings(toolsets={"web"}).closed(instead)
