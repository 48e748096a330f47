"""Which messages of a page count as the answer to a request."""

from __future__ import annotations

import asyncio
from typing import Any

import comm
import pytest
from comm.base_comm import BaseComm
from hermes_nb.notebook.page_discovery import Channel


class Line(BaseComm):
    """A comm to a page that is not there; keeps what was sent to it."""

    def __init__(self, **about: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(**about)

    def publish_msg(self, _kind: str, data: Any = None, **_more: Any) -> None:
        self.sent.append(data)


@pytest.mark.parametrize("replayed", ["the last answer", "a number", "no id"])
def test_only_the_answer_to_a_request_ends_it(
    monkeypatch: pytest.MonkeyPatch, replayed: str
) -> None:
    monkeypatch.setattr(comm, "create_comm", Line)

    async def story() -> None:
        channel = Channel({}, lambda *_: None)
        line: Any = channel._comm

        async def said(**data: Any) -> None:
            line.handle_msg({"content": {"data": data}})
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        first = channel.begin("page", "ask", {"id": "one"})
        await asyncio.sleep(0)
        yes = {"id": line.sent[-1]["id"], "result": {"answer": "once"}}
        await said(**yes)
        assert (await first)["result"] == {"answer": "once"}
        second = channel.begin("page", "ask", {"id": "two"})
        await asyncio.sleep(0)
        forged = {"the last answer": [yes["id"]], "a number": map(str, range(99)), "no id": [""]}
        for number in forged[replayed]:
            await said(**{**yes, "id": number})
        assert not second.done()
        await said(id=line.sent[-1]["id"], result={"answer": "deny"})
        await said(**{**yes, "id": line.sent[-1]["id"]})  # a second answer comes too late
        assert (await second)["result"] == {"answer": "deny"}

    asyncio.run(story())
