"""The administrator's policy holds for the models of a mixture."""

from __future__ import annotations

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError

from tests.safety.test_policy import config, servers, work

__all__ = ["servers", "work"]


def by_a_mixture(home, other):
    member = f"{{model: m, base_url: '{other.url}'}}"
    config(home, f"hermes_nb:\n  model: mixture:x\n  mixture: {{x: {{references: [{member}]}}}}\n")


def test_no_other_address_is_asked(work, home, servers, administered):
    allowed, other = servers
    file = administered(endpoints={"*": "force-off", allowed.url: "user-choice"})
    by_a_mixture(home, other)
    with Hermes() as hermes, pytest.raises(ConfigError, match="endpoints") as refused:
        hermes.ask("go")
    assert str(file) in str(refused.value)
    assert not other.bodies


def test_without_a_policy_it_is(work, home, servers):
    by_a_mixture(home, servers[1])
    with Hermes() as hermes:
        assert hermes.ask("go").text == "Theirs."
