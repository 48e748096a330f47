"""An open session of a client: its parts, and the turn that runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from acp import Client, schema

from hermes_nb.agent.runtime import Opening
from hermes_nb.agent.session.revert import undo_turn
from hermes_nb.agent.session.session import CHILD, REVIEW, Session
from hermes_nb.agent.settings.config import Settings
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import Event, TurnEnded
from hermes_nb.core.messages import Message, Text, ToolCall
from hermes_nb.core.protocols import SessionStore, StoredSession
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.extras.acp.questions import Asker
from hermes_nb.extras.acp.updates import Update, Updates
from hermes_nb.safety.redact import redact

COMMANDS = {
    "undo": "undo the last prompt, its answer and its file changes",
    "compress": "summarize the conversation, to free the context window",
    "trust": "trust the untrusted content in the conversation so far",
}
HINTS = {"compress": "what to keep"}
TITLE = 60
"""Maximum characters of a session's title."""


class NoSession(ConfigError):
    """The session to load does not exist."""


class Talk:
    """A session. Its parts are created by `open`.

    Args:
        client: the connection
        settings: the settings
        root: the session's working directory
        wanted: the id of the session to resume, or "" for a new one
    """

    def __init__(self, client: Client, settings: Settings, root: Path, wanted: str = "") -> None:
        self.id = wanted
        self.root = root
        self.home = settings.home
        self._client = client
        self._turn: asyncio.Task[None] | None = None
        self._pending: asyncio.Queue[Update | None] = asyncio.Queue()
        self._updates: Updates | None = None
        self._checkpoints = Checkpoints(settings.home / "checkpoints")
        self._opening = Opening(
            settings,
            approver=Asker(client, lambda: self.id, sent=self._sent, edit=self._edit),
            tell=_log,
            source="editor",
            root=root,
            joined=self._stored,
            checkpoints=self._checkpoints,
        )
        self.guard = self._opening.guard

    @property
    def session(self) -> Session:
        return self._opening.session()

    @property
    def busy(self) -> bool:
        """Whether a turn is running."""
        return self._turn is not None

    async def open(self) -> None:
        """Start or resume the session; raise `NoSession` or another `ConfigError`."""
        try:
            session = await in_thread(self._opening.session)
        except BaseException:
            await self._opening.aclose()
            raise
        self.id = self.id or session.id

    def _stored(self, store: SessionStore) -> StoredSession | None:
        if not self.id:
            return None
        found = store.get(self.id)
        if found is None or found.source in (CHILD, REVIEW):
            raise NoSession(f"there is no session {self.id!r}")
        return found

    async def send(self, update: Update) -> None:
        """Send an update to the client."""
        await self._client.session_update(session_id=self.id, update=update)

    async def run(self, message: Message) -> tuple[TurnEnded, Updates]:
        """Run a turn, and send its updates; return its end, and what it used.

        The turn ends if the client leaves. Raises `HermesError` if no turn could start.
        """
        session, window = self.session, self.session.agent.model.window
        fold = self._updates = Updates(session.agent.tools, window=window or 0)
        pending = self._pending = asyncio.Queue()
        ending = TurnEnded("interrupted")

        def sink(event: Event) -> None:
            nonlocal ending
            ending = event if isinstance(event, TurnEnded) else ending
            for update in fold(event):
                pending.put_nowait(update)

        self._turn = task = asyncio.create_task(_taken(session, message, sink))
        task.add_done_callback(lambda _: pending.put_nowait(None))
        try:
            while (update := await pending.get()) is not None:
                await self.send(update)
                pending.task_done()
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._turn = self._updates = None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        if session.agent.turns == 1:
            await self._entitle(message)
        return ending, fold

    async def _entitle(self, message: Message) -> None:
        said = (part.text for part in message.parts if isinstance(part, Text) and part.text)
        title = one_line(redact(visible(next(said, ""))), TITLE)
        await in_thread(self.session.store.rename, self.session.id, title)
        await self.send(schema.SessionInfoUpdate(session_update="session_info_update", title=title))

    async def command(self, text: str) -> str:
        """Run one of `COMMANDS` and return its report; return "" if it is none."""
        name, _, rest = text.strip().removeprefix("/").partition(" ")
        if not text.startswith("/") or name not in COMMANDS:
            return ""
        session = self.session
        if name == "undo":
            return await undo_turn(session, self._checkpoints)
        if name == "trust":
            where = session.accept_outside()
            return f"Trusted: {where}." if where else "There is no untrusted content."
        made = await session.compress(rest.strip())
        if made is None:
            return "The conversation cannot be shortened."
        return f"Compressed: {made.tokens_before:,} to {made.tokens_after:,} tokens."

    def stop(self) -> None:
        """Stop the running turn, if any."""
        if self._turn is not None:
            self._turn.cancel()

    async def aclose(self) -> None:
        """Stop the turn and leave the session, which can be resumed later."""
        if (turn := self._turn) is not None:
            turn.cancel()
            await asyncio.wait([turn])
        if not self.session.messages:  # nothing to resume
            await in_thread(self.session.store.delete, self.session.id)
        await self._opening.aclose()

    async def _sent(self) -> None:
        await self._pending.join()

    def _edit(self, call: ToolCall) -> schema.FileEditToolCallContent | None:
        return self._updates.edit(call) if self._updates is not None else None


async def _taken(session: Session, message: Message, sink: Callable[[Event], None]) -> None:
    async with aclosing(session.turn(message, sinks=[sink])) as events:
        async for _ in events:
            pass


def _log(line: str) -> None:
    print(visible(redact(line), lines=True), file=sys.stderr, flush=True)
