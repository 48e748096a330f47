"""Import paths of earlier versions lead to what took their place."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from hermes_nb.moved import MOVED, PACKAGES


def leads(old):
    """See that an old path and the new one are the same module."""
    new = import_module(MOVED[old])
    assert import_module(old) is new
    assert new.__spec__.name == MOVED[old]
    package, _, name = old.rpartition(".")
    held = {}
    exec(f"from {package} import {name} as found", held)
    assert held["found"] is new


@pytest.mark.parametrize("old", [old for old in MOVED if ".extras." not in MOVED[old]])
def test_an_old_path_is_the_module_that_took_its_place(old):
    leads(old)


@pytest.mark.parametrize("name", PACKAGES)
def test_names_of_packages_lead_to_what_was_in_them(name):
    assert import_module(name).__path__ is not None


def test_an_old_path_is_found_by_a_program_that_imports_nothing_else(tmp_path):
    code = "from hermes_nb.app.maps.task import perform; print(perform.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == MOVED["hermes_nb.app.maps.task"]


def test_a_room_that_was_removed_is_named(monkeypatch):
    monkeypatch.setitem(MOVED, "hermes_nb.agent.gone", "hermes_nb.extras.gone.module")
    with pytest.raises(ModuleNotFoundError, match=r"hermes_nb\.extras\.gone"):
        import_module("hermes_nb.agent.gone")


def test_other_names_are_missing_as_ever():
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        import_module("hermes_nb.agent.nothing")
