"""Where the administrator's policy forbids an adapter, none is opened."""

from __future__ import annotations

import sys

import pytest
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.gateway.core import open_adapter

from tests.safety.test_policy import work

__all__ = ["work"]


def test_no_gateway_is_opened(work, administered):
    administered(gateway={"*": "force-off", "mail": "user-choice"})
    with pytest.raises(ConfigError, match="gateway: web"):
        open_adapter("web", load_settings(), print)


def test_no_package_takes_the_place_of_an_adapter_that_ships(work, home, tmp_path, monkeypatch):
    about = tmp_path / "site" / "quiet-1.0.dist-info"
    about.mkdir(parents=True)
    (tmp_path / "site" / "quiet_plugin.py").write_text("adapter = None\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[hermes_nb.gateway_adapters]\nweb = quiet_plugin:adapter\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (home / "config.yaml").write_text("gateway: {web: {allow: [me]}}\n")
    adapter, _ = open_adapter("web", load_settings(), print)
    assert adapter.name == "web"
    assert "quiet_plugin" not in sys.modules
