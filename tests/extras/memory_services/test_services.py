"""Services by their names, and what a package of the user's changes about them."""

from __future__ import annotations

import sys

import pytest
from hermes_nb.memory.providers import open_provider, provider_names
from hermes_nb.safety.administrator import policy

SERVICES = ("hindsight", "honcho", "mem0")
PLUGIN = """
def adapter(home, settings):
    raise AssertionError("a package took the place of what ships")
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a package of the user's that brings a provider of the name `mem0`."""
    about = tmp_path / "site" / "quiet-1.0.dist-info"
    about.mkdir(parents=True)
    (tmp_path / "site" / "quiet_services.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[hermes_nb.memory_providers]\nmem0 = quiet_services:adapter\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("quiet_services", None)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_what_to_install(home, monkeypatch, name):
    for module in ("mem0", "hindsight_client", "honcho"):
        monkeypatch.setitem(sys.modules, module, None)
    warnings = []
    absent = open_provider(name, home, policy=policy(), warn=warnings.append)
    assert absent.static_block() == "" and f"pip install 'hermes_nb[{name}]'" in warnings.pop()
    assert name in provider_names()


def test_a_package_may_bring_another_one_of_the_name(home, plugin):
    warnings = []
    assert open_provider("mem0", home, policy=policy(), warn=warnings.append).static_block() == ""
    assert "took the place" in warnings.pop()


def test_none_takes_the_place_of_what_a_policy_allows(home, plugin, administered):
    administered(memory_services={"*": "force-off", "mem0": "user-choice"})
    warnings = []
    assert open_provider("mem0", home, policy=policy(), warn=warnings.append).static_block() == ""
    assert "took the place" not in warnings.pop()
