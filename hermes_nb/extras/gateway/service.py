"""The gateway: receives messages from all adapters and answers chats in parallel.

Within a chat, messages are answered in order. Each message is stored, processed, answered and
acknowledged. After a crash, unfinished messages are recovered from the `journal`. `/stop` and
answers to questions skip the queue of their chat.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TypeVar, cast

from hermes_nb.agent.session.recorder import close_store
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import OUTBOXES, ChatModel, Outbox
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.extras.gateway.core import (
    Adapter,
    Allowed,
    Answer,
    Incoming,
    NotSent,
    Undeliverable,
    files_of,
    keep_file,
    key_of,
    plain_name,
)
from hermes_nb.extras.gateway.journal import KEPT, Entry, Journal
from hermes_nb.extras.gateway.rendering import closed
from hermes_nb.extras.gateway.turns import IDLE, ChatAgent, Terms, command_of
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.redact import redact

Result = TypeVar("Result")
OpenOutbox = Callable[[Path, Callable[[str], None]], Outbox]
PAUSES = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds to wait before each retry after a failure; the last value repeats."""
LOOK = 5.0
"""Seconds between two checks for idle chats and for notices to send."""
SHOWN = 4.0
"""Seconds that services display the typing indicator."""
DAY = 86_400.0
LATE = 7 * DAY
"""Notices older than this many seconds are not sent."""
FAILED = "✗ Something went wrong in the gateway. Its output has the details."


@dataclass(slots=True)
class Chat:
    """The state of a chat that has, or has had, messages to answer."""

    adapter: Adapter
    """The adapter of the chat's service."""
    agent: ChatAgent
    """Answers its messages."""
    waiting: deque[tuple[Entry, bool]] = field(default_factory=deque)
    """Pending entries, each with whether it may have been sent before."""
    task: asyncio.Task[None] | None = None
    """Task that answers the pending entries; None before the first."""
    looked: float = -math.inf  # monotonic time of the last check for an expired session


class Gateway:
    """Receives messages from `adapters` and answers them, for one Hermes directory.

    Args:
        home: The Hermes directory.
        adapters: The services to connect to.
        allowed: Each adapter's allow-list, by name.
        root: The agent's working directory.
        tell: Prints a line for the operator.
        model: Replaces the model in the settings.
    """

    def __init__(
        self,
        home: Path,
        adapters: Sequence[Adapter],
        allowed: Mapping[str, Allowed],
        *,
        root: Path,
        tell: Callable[[str], None],
        model: ChatModel | None = None,
    ) -> None:
        self._home, self._root, self._tell, self._model = home, root, tell, model
        self._adapters = {adapter.name: adapter for adapter in adapters}
        self._allowed = allowed
        settings = load_settings(home=home)
        self._terms = Terms.of(settings.gateway)
        # This raises if the mode is invalid.
        load_settings(home=home, overrides={"approve": self._terms.approve or None})
        self._store = open_store(settings, tell)  # once, because opening it checks its integrity
        self._journal = Journal(home / "gateway" / "journal.db", warn=tell)
        self._outboxes = [
            cast("OpenOutbox", loaded(point))(home, tell) for point in plugins(OUTBOXES)
        ]
        self._chats: dict[tuple[str, str], Chat] = {}
        self._slots = asyncio.Semaphore(self._terms.parallel)
        self._strangers: set[tuple[str, str]] = set()
        self._group = asyncio.TaskGroup()

    async def run(self) -> None:
        """Serve until cancelled; the next start resumes unfinished work."""
        try:
            async with self._group:
                for entry in await self._retry_storage(self._journal.unfinished):
                    self._queue(entry, again=entry.tried)
                for adapter in self._adapters.values():
                    self._group.create_task(self._listen(adapter))
                self._group.create_task(self._maintain())
        finally:
            for adapter in self._adapters.values():
                await self._run_optional(adapter, adapter.aclose())
            close_store(self._store)
            self._journal.close()
            for outbox in self._outboxes:
                outbox.close()

    async def _listen(self, adapter: Adapter) -> None:
        """Receive an adapter's messages; if it fails, restart it after a pause.

        Raises:
            ConfigError: a setting is wrong, which ends the gateway because retrying would not help.
        """
        pauses = _pauses()
        while True:
            try:
                async with aclosing(adapter.receive()) as messages:
                    async for message in messages:
                        await self._arrived(adapter, message)
                        pauses = _pauses()
                        # An adapter that never waits must not block the others.
                        await asyncio.sleep(0)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - one adapter must not end the others
                told, pause = redact(f"{type(error).__name__}: {error}"), next(pauses)
                self._tell(f"{adapter.name}: failed, restarting in {pause:g} s: {told}")
                await asyncio.sleep(pause)
            else:
                return

    async def _arrived(self, adapter: Adapter, message: Incoming) -> None:
        """Store a message and start answering it.

        If the administrator's policy now forbids the adapter, the message is neither stored nor
        confirmed to its service.

        Raises:
            ConfigError: the policy forbids the adapter, which ends the gateway.
        """
        policy().check("gateway", adapter.name)
        if not self._allowed[adapter.name](message.user, message.chat):
            if (adapter.name, message.user) not in self._strangers:
                self._strangers.add((adapter.name, message.user))
                who = visible(f"{one_line(message.user, 60)} in {one_line(message.chat, 60)}")
                self._tell(f"{adapter.name}: {who} is not in `allow`, so it gets no answer")
            return
        entry = await self._retry_storage(partial(self._saved, adapter.name, message))
        known = await self._retry_storage(partial(self._journal.take, entry))
        if known is not None:
            if known.state == "done":
                await self._run_optional(adapter, adapter.acknowledge(message))
            return
        chat = self._chat(adapter, message.chat)
        if chat.agent.heard(message):
            await self._finish(adapter, entry)
        elif command_of(message.text)[0] == "/stop":  # the stopped turn reports it
            told = () if chat.agent.stop() else (IDLE,)
            self._group.create_task(
                self._send(adapter, replace(entry, state="answered", parts=told))
            )
        else:
            self._queue(entry)
            self._group.create_task(chat.agent.remind(message))

    def _chat(self, adapter: Adapter, name: str) -> Chat:
        key = adapter.name, name
        if key not in self._chats:

            async def say(text: str) -> list[str]:
                parts = closed(pieces(text, adapter.most))
                answers = [Answer(chat=name, text=part, key=token_hex(16)) for part in parts]
                for answer in answers:
                    await self._sent(adapter, answer)
                return [answer.key for answer in answers]

            agent = ChatAgent(
                self._journal, self._store, *key, home=self._home, root=self._root, say=say,
                tell=self._tell, slots=self._slots, model=self._model, binding=adapter.binding,
                unasked=adapter.unasked,
            )  # fmt: skip
            self._chats[key] = Chat(adapter, agent)
        return self._chats[key]

    def _queue(self, entry: Entry, *, again: bool = False) -> None:
        """Queue a message in its chat; if its adapter isn't running, it stays in the journal."""
        adapter = self._adapters.get(entry.adapter)
        if adapter is None:
            return
        chat = self._chat(adapter, entry.message.chat)
        chat.waiting.append((entry, again))
        if chat.task is None or chat.task.done():
            chat.task = self._group.create_task(self._serve(chat))

    async def _serve(self, chat: Chat) -> None:
        """Answer a chat's pending messages in order."""
        while chat.waiting:
            entry, again = chat.waiting.popleft()
            try:
                if entry.state in ("waiting", "begun"):
                    entry = await self._answered(chat, entry)
                await self._send(chat.adapter, entry, again=again)
            except BaseException:
                await self._run_optional(chat.adapter, chat.agent.settle(look_back=False))
                raise
            await self._run_optional(chat.adapter, chat.agent.settle())

    async def _answered(self, chat: Chat, entry: Entry) -> Entry:
        """Answer an entry's message; store the entry with the answer and return it."""
        showing = asyncio.create_task(self._show(chat.adapter, entry.message.chat))
        try:
            made = await chat.agent.answer(entry)
        except Exception as error:  # noqa: BLE001 - one message must not end the gateway
            self._tell(f"{chat.adapter.name}: {redact(f'{type(error).__name__}: {error}')}")
            made = replace(entry, parts=(FAILED,))
        finally:
            showing.cancel()
        made = replace(made, parts=tuple(_cut(made.parts, chat.adapter.most)))
        return await self._retry_storage(
            partial(self._journal.note, replace(made, state="answered", tried=True))
        )

    async def _show(self, adapter: Adapter, chat: str) -> None:
        with suppress(Exception):  # optional; a real problem appears again when the answer is sent
            while True:
                await adapter.working(chat)
                await asyncio.sleep(SHOWN)

    async def _run_optional(self, adapter: Adapter, work: Awaitable[None]) -> None:
        """Await `work` that is not essential for an answer; failures are only reported."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - one fault must not end the gateway
            self._tell(f"{adapter.name}: {redact(f'{type(error).__name__}: {error}')}")

    async def _send(self, adapter: Adapter, entry: Entry, *, again: bool = False) -> None:
        """Send the remaining parts of an answer one by one, then acknowledge its message."""
        while entry.sent < len(entry.parts):
            if not entry.tried:
                entry = await self._retry_storage(
                    partial(self._journal.note, replace(entry, tried=True))
                )
            part = entry.parts[entry.sent]
            if isinstance(part, Path) and not part.is_file():
                part = f"✗ {part.name} could not be sent: the file no longer exists"
            answer = Answer(
                chat=entry.message.chat,
                text=part if isinstance(part, str) else "",
                file=part if isinstance(part, Path) else None,
                key=key_of(entry.adapter, entry.message.id, str(entry.sent)),
                to=entry.message.id if entry.message.user else "",
                again=again,
            )
            await self._sent(adapter, answer)
            again = False
            entry = replace(entry, sent=entry.sent + 1)
            if entry.sent < len(entry.parts):
                await self._retry_storage(partial(self._journal.note, entry))
        await self._finish(adapter, entry)

    async def _sent(self, adapter: Adapter, answer: Answer) -> None:
        """Send a message, retrying until it is accepted or abandoned."""
        again = answer.again
        for pause in _pauses():
            try:
                await adapter.send(replace(answer, again=again and not adapter.deduplicates))
            except NotSent as error:
                text = str(error)
            except Undeliverable as error:
                self._tell(f"{adapter.name}: not sent, giving up: {redact(str(error))}")
                if answer.file is None:
                    return
                text = f"✗ {answer.file.name} could not be sent: {redact(str(error))}"
                answer = replace(answer, file=None, text=text, key=key_of(answer.key, "file"))
                continue
            except Exception as error:  # noqa: BLE001 - any error from a client library
                again, text = True, f"{type(error).__name__}: {error}"
            else:
                return
            self._tell(f"{adapter.name}: not sent, trying again in {pause:g} s: {redact(text)}")
            await asyncio.sleep(pause)

    async def _finish(self, adapter: Adapter, entry: Entry) -> None:
        """Record that a message has been answered, delete its text, and acknowledge it."""
        message = replace(entry.message, files=(), text="", quoted="")
        done = replace(entry, message=message, state="done", parts=())
        await self._retry_storage(partial(self._journal.note, done))
        if message.user:
            await self._run_optional(adapter, adapter.acknowledge(message))

    async def _retry_storage(self, call: Callable[[], Result]) -> Result:
        """Return a journal or disk operation's result, retrying until it succeeds."""
        for pause in _pauses():
            try:
                return await in_thread(call)
            except (HermesError, OSError) as error:
                self._tell(f"the journal cannot be written, trying again in {pause:g} s: {error}")
            await asyncio.sleep(pause)
        raise AssertionError

    def _saved(self, adapter: str, message: Incoming) -> Entry:
        """Store a message's files and return an entry for the message."""
        folder = files_of(self._home, adapter, message.id)
        files = tuple(
            keep_file(
                folder / f"{f'{number}-' if number else ''}{plain_name(file.name)}", file.data
            )
            for number, file in enumerate(message.files)
        )
        return Entry(adapter=adapter, message=message, files=files)

    def _forget(self) -> None:
        """Delete messages that were answered long ago, along with their files."""
        self._journal.forget()
        for folder in files_of(self._home, "", "").parent.glob("*"):
            if folder.stat().st_mtime < time.time() - KEPT:
                shutil.rmtree(folder, ignore_errors=True)

    async def _maintain(self) -> None:
        """Expire idle sessions, send job notices, and delete old messages."""
        forgot = -math.inf
        while True:
            if time.monotonic() - forgot > DAY:
                forgot = time.monotonic()
                await self._retry_storage(self._forget)
            for row in await self._retry_storage(self._journal.chats):
                adapter = self._adapters.get(row.adapter)
                if adapter is None or time.time() - row.written < self._terms.idle:
                    continue
                chat = self._chat(adapter, row.chat)
                rested = time.monotonic() - chat.looked > PAUSES[-1]
                if rested and (chat.task is None or chat.task.done()):
                    chat.looked = time.monotonic()
                    chat.task = self._group.create_task(self._expired(chat))
            for outbox in self._outboxes:
                for entry in await self._retry_storage(partial(self._store_notices, outbox)):
                    self._queue(entry)
            await asyncio.sleep(LOOK)

    async def _expired(self, chat: Chat) -> None:
        await self._run_optional(chat.adapter, chat.agent.expire("it was idle for too long"))
        await self._serve(chat)

    def _store_notices(self, outbox: Outbox) -> list[Entry]:
        """Store the new notices as entries and return them."""
        found: list[Entry] = []
        for notice in outbox.notices():
            adapter = self._adapters.get(notice.adapter)
            if adapter is None or time.time() - notice.at >= LATE:
                continue
            message = Incoming(id=notice.id, chat=notice.chat, user="", text="")
            parts = tuple(closed(pieces(notice.text, adapter.most)))
            entry = Entry(adapter=adapter.name, message=message, state="answered", parts=parts)
            if self._journal.take(entry) is None:
                found.append(entry)
        return found


def _pauses() -> Iterator[float]:
    yield from PAUSES
    while True:
        yield PAUSES[-1]


def _cut(parts: Sequence[str | Path], most: int) -> Iterator[str | Path]:
    for part in parts:
        yield from [part] if isinstance(part, Path) else closed(pieces(part, most))


def pieces(text: str, most: int) -> list[str]:
    """Split text into pieces of at most `most` UTF-16 units, at line breaks if possible."""
    found, at = [], 0
    while most and _units(text[at:]) > most:
        end = at + most
        while (over := _units(text[at:end]) - most) > 0:
            end -= (over + 1) // 2
        line = text.rfind("\n", at + most // 2, end)
        end = line + 1 if line > 0 else end
        found.append(text[at:end])
        at = end
    found.append(text[at:])
    return [piece for piece in found if piece.strip()] or [text]


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
