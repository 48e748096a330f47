"""The store is away while a chat goes on: what was said is in its session when it is back."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel

from tests.extras.gateway.services import Memory, serving
from tests.faults.test_away import impatient_store

__all__ = ["impatient_store"]

ANSWERS = [f"answer {number}" for number in range(6)]


def test_94_a_chat_goes_on_while_the_store_is_locked(home, tmp_path, impatient_store):
    home.mkdir()
    chat, model = Memory(), ScriptedModel(ANSWERS)

    async def say(number):
        chat.post(f"prompt {number}")
        await chat.said(number + 1)

    async def story():
        async with serving(chat, root=tmp_path, home=home, model=model):
            await say(0)
            with closing(sqlite3.connect(home / "notebook.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                for number in (1, 2, 3):
                    await say(number)
                other.execute("ROLLBACK")
            await say(4)
            await say(5)

    asyncio.run(story())
    with closing(SqliteStore(home / "notebook.db")) as store:
        (session,) = store.sessions()
        texts = [message.text for message in store.messages(session.id)]
    assert texts[1::2] == ANSWERS
    assert all(f"prompt {number}" in text for number, text in enumerate(texts[::2]))
    # The model was told of everything that was said before, also while the store was away.
    assert [len(request.messages) for request in model.requests] == [2, 4, 6, 8, 10, 12]
