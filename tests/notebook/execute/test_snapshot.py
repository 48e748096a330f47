"""Snapshots of hostile objects: restored or named, and none of their own code runs."""

from __future__ import annotations

import tomllib
import types
from pathlib import Path

import pytest
from hermes_nb.notebook.execute.snapshot import Snapshot, reachable

pytestmark = pytest.mark.filterwarnings("ignore")  # of pandas, about `inplace`

PRELUDE = """
import array, collections, contextlib, dataclasses, enum, functools, io, itertools, random, types
import weakref
import numpy as np
import pandas as pd
RAN = []
def ran(*a, **k): RAN.append(1); raise AssertionError('code of the user ran')
"""
OBJECTS = tomllib.loads(Path(__file__).with_name("hostile.toml").read_text(encoding="utf-8"))
RESTORED = {name: each for name, each in OBJECTS.items() if "look" in each}
NAMED = {name: each for name, each in OBJECTS.items() if "look" not in each}


def namespace(code):
    module = types.ModuleType("__main__")
    names = vars(module)
    exec(PRELUDE, names)
    exec(code, names)
    return names


@pytest.mark.parametrize("code", RESTORED.values(), ids=RESTORED)
def test_a_hostile_object_is_restored_and_its_code_does_not_run(code):
    before, change, look = code["before"], code["change"], code["look"]
    names = namespace(before)
    state = repr(eval(look, names))
    identities = {name: id(value) for name, value in names.items() if name != "__builtins__"}
    del names["RAN"][:]
    snapshot = Snapshot(names, reachable(change, names))
    assert names["RAN"] == []
    exec(change, names)
    del names["RAN"][:]
    changed, rebound = snapshot.changed(), snapshot.rebound()
    assert changed or rebound
    assert not snapshot.lost
    for saved in changed:
        saved.kind.restore(saved.value, saved.state)
    for name in rebound:
        names[name] = snapshot.bindings[name]
    assert all(saved.same() for saved in changed)
    assert names["RAN"] == []
    assert repr(eval(look, names)) == state
    assert {n: id(v) for n, v in names.items() if n in identities} == identities


@pytest.mark.parametrize("code", NAMED.values(), ids=NAMED)
def test_what_cannot_be_restored_is_named(code):
    before, change = code["before"], code["change"]
    names = namespace(before)
    snapshot = Snapshot(names, reachable(change, names))
    assert "x" in snapshot.lost
    assert Snapshot(names, reachable("1 + 1", names)).lost == {}


def test_equal_plain_values_do_not_count_as_changed():
    names = {"x": float("nan"), "y": "a" * 10, "z": -0.0, "n": 1000}
    snapshot = Snapshot(names, None)
    names.update(x=float("nan"), y="".join(["a"] * 10), z=0.0, n=int("1000"))
    assert snapshot.rebound() == ["z"]


def test_a_class_that_refuses_to_be_read_is_saved():
    class Meta(type):
        def __getattribute__(cls, name):
            raise RuntimeError(name)

    odd = Meta("Odd", (), {})
    names = {"c": odd, "v": type.__call__(odd)}
    snapshot = Snapshot(names, None)
    names["v"].n = 1
    assert [saved.value for saved in snapshot.changed()] == [names["v"]]


def test_cells_of_the_notebooks_are_undone():
    from bench.snapshot import notebooks, run

    found = run(notebooks, 0.3, held=False)
    assert found["which"] == []
    assert found["equal"] == found["cells"] > 0
