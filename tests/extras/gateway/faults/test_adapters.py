"""Adapters of the gateway that break: the others go on, and whoever runs it is told which."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.gateway import service
from hermes_nb.extras.gateway.core import Incoming
from hermes_nb.extras.gateway.service import Gateway
from hermes_nb.models.scripted import ScriptedModel

from tests.extras.gateway.services import Memory


class Raising(Memory):
    """Raises before its first messages, and again after each."""

    problem = RuntimeError("sk-9fK2mQ7xTb4LwZ8vRc1NdYp6: connection reset")

    async def receive(self):
        self.begun = getattr(self, "begun", 0) + 1
        if self.begun < 3:
            raise self.problem
        async for message in super().receive():
            yield message
            raise self.problem


class Hanging(Memory):
    """Never yields anything."""

    async def receive(self):
        await asyncio.Event().wait()
        yield


class Flooding(Memory):
    """Yields messages of a stranger without ever waiting for anything."""

    taken = 0

    async def receive(self):
        while True:
            self.taken += 1
            yield Incoming(id=f"f{self.taken}", chat="spam", user="eve", text="x" * 1_000)


async def run(home, root, model, adapters, story):
    """Serve all the adapters while a story happens; return what was told."""
    told = []
    gateway = Gateway(
        home,
        adapters,
        dict.fromkeys([each.name for each in adapters], lambda user, _: user == "ada"),
        root=root,
        tell=told.append,
        model=model,
    )
    task = asyncio.create_task(gateway.run())
    try:
        await story()
    finally:
        if task.done():
            task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return told


# 99: One gateway adapter raises, hangs, floods: the others go on, and it is started again.
@pytest.mark.parametrize("broken", [Raising, Hanging, Flooding])
def test_99_the_others_go_on(home, tmp_path, monkeypatch, broken):
    monkeypatch.setattr(service, "PAUSES", (0.01, 0.02))
    home.mkdir()
    chat, other = Memory(), broken(name="other")

    async def story():
        for number in range(3):
            chat.post(f"hello {number}")
            assert len(await chat.said(number + 1)) == number + 1

    model = ScriptedModel(["One.", "Two.", "Three."])
    asyncio.run(run(home, tmp_path, model, [other, chat], story))
    assert [answer.text for answer in chat.sent] == ["One.", "Two.", "Three."]


def test_99_what_raised_is_started_again_and_named(home, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "PAUSES", (0.01, 0.02))
    home.mkdir()
    other = Raising(name="other")
    other.post("one")
    other.post("two")

    async def story():
        await other.said(2)
        await other.until(lambda: len(set(other.acknowledged)) == 2)

    told = asyncio.run(run(home, tmp_path, ScriptedModel(["1.", "2."]), [other], story))
    assert [answer.text for answer in other.sent] == ["1.", "2."]
    named = [line for line in told if line.startswith("other: ")]
    assert len(named) >= 3 and all("RuntimeError" in line for line in named)
    assert "restarting in 0.01 s" in named[0] and "restarting in 0.02 s" in named[1]
    assert not any("9fK2mQ7x" in line for line in told), "its key is not shown"


def test_99_a_wrong_setting_ends_the_gateway(home, tmp_path):
    class Refused(Memory):
        async def receive(self):
            raise ConfigError("this bot is not known")
            yield

    async def story():
        end = time.monotonic() + 20
        while len(asyncio.all_tasks()) > 1 and time.monotonic() < end:
            await asyncio.sleep(0.01)

    home.mkdir()
    with pytest.raises(ExceptionGroup) as ended:
        asyncio.run(run(home, tmp_path, ScriptedModel([]), [Refused(), Memory("other")], story))
    (why,) = ended.value.exceptions
    assert isinstance(why, ConfigError)
