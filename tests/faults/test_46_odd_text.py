"""Lone surrogates, NUL, NaN and infinities get into the file and out again, also after damage."""

from __future__ import annotations

import math

from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import is_intact

ODD = "\ud800 \0 \x1b \u202e \ufeff \uffff 漢 🦊 \udfff"


def test_46_odd_text(tmp_path):
    path = tmp_path / "n.db"
    call = ToolCall(id=ODD, name="t", arguments={ODD: [math.inf, -math.inf, ODD]}, text=ODD)
    messages = [
        Message.user(ODD),
        Message.assistant(ODD, calls=[call], reasoning=ODD),
        Message.tool(call, ODD),
        Message(role="assistant", echo={"x": {ODD: 1e400}}),
    ]
    store = SqliteStore(path)
    session = store.start(title=ODD, notebook=ODD, model=ODD, system_prompt=ODD)
    for message in messages:
        store.append(session, message)
    store.append(session, Message(role="assistant", echo={"x": math.nan}))
    for query in (ODD, "\0", "\ud800", "漢", "🦊"):
        store.search(query)
    store.rename(session, ODD)
    assert store.messages(session)[:4] == messages
    store.replace(session, messages)
    store.close()
    assert is_intact(path)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    store = SqliteStore(path)
    assert store.messages(session) == messages
    assert math.isnan(store.rows(session, first=4)[0].message.echo["x"])
    store.close()
