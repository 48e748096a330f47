"""A process killed while it compresses leaves the old conversation or the new one, whole."""

from __future__ import annotations

import random

from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import KILLS, is_intact, killed, run_python

COMPRESSOR = """
import sys
from hermes_nb.core.messages import Message
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
store, tag = SqliteStore(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
for n in range(100_000):
    now = store.messages("s")
    if n % 3 == 2:
        store.restore("s")
    else:
        store.replace("s", [now[0], Message.user(f"summary {tag}.{n}"), *now[-2:]])
        store.append("s", Message.user(f"m{tag}.{n}"))
    print(n, flush=True)
"""


def test_05_kill_during_compression(tmp_path):
    path = tmp_path / "n.db"
    store = SqliteStore(path)
    store.start(session_id="s", system_prompt="the prompt")
    for n in range(6):
        store.append("s", Message.user(f"first {n}"))
    store.close()
    for round_ in range(KILLS):
        killed(run_python(COMPRESSOR, path, round_), random.Random(round_).uniform(0, 0.1))
        store = SqliteStore(path)
        messages = store.messages("s")
        assert messages[0].text == "first 0"
        assert len(messages) == store.get("s").messages
        assert len({message.text for message in messages}) == len(messages)
        active = [row.message for row in store.rows("s") if row.state == "active"]
        assert sorted(m.text for m in active) == sorted(m.text for m in messages)
        store.close()
    assert is_intact(path)
    store = SqliteStore(path)
    while store.restore("s") is not None:
        pass
    assert [m.text for m in store.messages("s")][:6] == [f"first {n}" for n in range(6)]
    store.close()
