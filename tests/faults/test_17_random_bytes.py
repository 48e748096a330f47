"""Random bytes all over a database cost the rows they hit and nothing else."""

from __future__ import annotations

import random

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import filled, is_intact


@pytest.mark.parametrize("seed", range(6))
def test_17_random_bytes(tmp_path, seed):
    path = tmp_path / "n.db"
    ids = filled(path)
    dice = random.Random(seed)
    data = bytearray(path.read_bytes())
    spots = [dice.randrange(100 * (seed % 2), len(data) - 64) for _ in range(6)]
    for spot in spots:
        data[spot : spot + 64] = dice.randbytes(64)
    path.write_bytes(data)
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert store.messages(ids[0])[-1].text == "and on"
    store.search("walrus")
    kept = sum(len(store.rows(session)) for session in ids)
    # A hit on a row's page may cost all rows of that page (about ten), one on a long message it.
    assert kept >= 121 - 12 * len(spots)
    for session in ids:
        store.messages(session)
    store.close()
    store = SqliteStore(path)
    assert sum(len(store.rows(session)) for session in ids) == kept
    assert store.warnings == [] or "cannot be read" in store.warnings[0]
    store.close()
    if list(tmp_path.glob("*.damaged-*")):
        assert is_intact(path)
