"""The official client of the protocol in front of a real `jupyter hermes acp`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
from acp import schema

Answer = Callable[[list[schema.PermissionOption]], object]


def picks(option: str) -> Answer:
    """Return the answer of a user who chooses this option."""
    chosen = schema.AllowedOutcome(outcome="selected", option_id=option)
    return lambda _: schema.RequestPermissionResponse(outcome=chosen)


class Editor:
    """A client that records what it gets; its user gives `answers`, one a question."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.updates: list[Any] = []
        self.asked: list[tuple[schema.ToolCallUpdate, list[str]]] = []
        self.news = asyncio.Event()

    def on_connect(self, conn: acp.Agent) -> None:
        self.agent = conn

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.news.set()

    async def request_permission(
        self,
        session_id: str,
        tool_call: schema.ToolCallUpdate,
        options: list[schema.PermissionOption],
        **_: Any,
    ) -> schema.RequestPermissionResponse:
        self.asked.append((tool_call, [option.option_id for option in options]))
        self.news.set()
        answer = self.answers.pop(0)(options)
        return await answer if asyncio.iscoroutine(answer) else answer

    def of(self, kind: str) -> list[Any]:
        """Return the updates of a kind, in order."""
        return [each for each in self.updates if each.session_update == kind]

    @property
    def text(self) -> str:
        """What the agent has said."""
        return "".join(each.content.text for each in self.of("agent_message_chunk"))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something has come."""
        while not condition():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 30)


@asynccontextmanager
async def editor(
    *answers: Answer, words: Sequence[str] = (), **environment: str
) -> AsyncIterator[tuple[Editor, acp.Agent, asyncio.subprocess.Process]]:
    """Start the agent as an editor does, and say hello."""
    client = Editor(*answers)
    command = [sys.executable, "-m", "hermes_nb.cli", "acp", *words]
    spawned = acp.spawn_agent_process(
        client,  # type: ignore[arg-type]
        *command,
        env={**os.environ, **environment},
        use_unstable_protocol=True,
    )
    async with spawned as (agent, process):
        await asyncio.wait_for(agent.initialize(protocol_version=acp.PROTOCOL_VERSION), 60)
        yield client, agent, process


async def opened(agent: acp.Agent, folder: Path, **more: Any) -> str:
    """Start a session in a folder and return its id."""
    made = await asyncio.wait_for(agent.new_session(cwd=str(folder), **more), 60)
    return made.session_id


async def said(agent: acp.Agent, session: str, *blocks: Any) -> schema.PromptResponse:
    """Send a prompt and return the response."""
    made = [acp.text_block(each) if isinstance(each, str) else each for each in blocks]
    return await asyncio.wait_for(agent.prompt(session_id=session, prompt=made), 150)
