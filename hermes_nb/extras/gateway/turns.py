"""A chat's agent: resumes the chat's session and answers one message at a time.

Only "always" approvals are kept in memory between turns. A turn interrupted by a crash is resumed
from its stored messages. If its answer is stored, it is used unchanged. Otherwise the model
continues after checking the current state, since a call without a result may have run.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_nb.agent.learning.reviews import looking_back
from hermes_nb.agent.models import build_model
from hermes_nb.agent.runtime import Opening
from hermes_nb.agent.session.revert import undo_turn
from hermes_nb.agent.session.session import Session
from hermes_nb.agent.session.turn import turn_of
from hermes_nb.agent.session.usage import session_usage
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.context.boundaries import is_ours
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.errors import ConfigError, HermesError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import Event
from hermes_nb.core.loop import is_prompt
from hermes_nb.core.messages import Image, Message, Text, Usage
from hermes_nb.core.protocols import ChatModel, SessionStore
from hermes_nb.core.regular_files import Refused, read_regular
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Tool
from hermes_nb.extras.gateway.core import (
    MAX_BYTES,
    Binding,
    Incoming,
    files_of,
    keep_file,
    key_of,
    number_in,
    plain_name,
)
from hermes_nb.extras.gateway.journal import ChatRow, Entry, Journal
from hermes_nb.extras.gateway.questions import Asking, Slot
from hermes_nb.models.profiles import traits_of
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.redact import redact
from hermes_nb.tools.consult import KINDS, MOST_BYTES
from hermes_nb.tools.encodings import SAMPLE, kind_of
from hermes_nb.tools.schema import tool
from hermes_nb.tools.workspace import Workspace, size_text

COMMANDS = {
    "/new": "start a new session; lasting facts are saved first",
    "/stop": "stop the running answer",
    "/undo": "undo the last message, its answer and its file changes",
    "/model": "show or choose the model for this chat: /model NAME, or /model default",
    "/help": "list these commands",
}
BEGIN = "/start"
"""Command that Telegram sends when a user opens a chat with a bot."""
GO_ON = (
    "[The gateway was stopped while you were working on the message above that has no answer. "
    "Everything that was recorded is above; a call without a result may have run. Check the "
    "current state before you repeat anything, then finish.]"
)
WORDLESS = "[It has no text.]"
STOPPED, IDLE = "Stopped.", "Nothing is running here."
WORTH = 4
"""Minimum number of messages in a session for a background review at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Limits and modes of chats, from the group `gateway` in config.yaml."""

    approve: str = ""
    """Approval mode; "" for the mode in the settings."""
    limits: Limits = field(default_factory=Limits)
    """A chat's budget across all its sessions."""
    seconds: float = 600.0
    """Seconds to wait for the answer to a question."""
    idle: float = 86_400.0
    """Seconds without a message after which a session ends."""
    parallel: int = 8
    """Maximum number of turns that run in parallel."""
    bytes: int = MAX_BYTES
    """Maximum size of a file to send."""

    @classmethod
    def of(cls, group: Mapping[str, object]) -> Terms:
        """Read the settings; raise `ConfigError` if a value is not a number."""
        cost, tokens = number_in(group, "cost", 0), int(number_in(group, "tokens", 0))
        return cls(
            approve=str(group.get("approve") or ""),
            limits=Limits(cost=cost or None, tokens=tokens or None),
            seconds=60 * number_in(group, "question_minutes", 10),
            idle=60 * number_in(group, "idle_minutes", 1_440) or math.inf,
            parallel=int(number_in(group, "parallel", 8)) or 1,
            bytes=int(number_in(group, "max_bytes", MAX_BYTES)) or MAX_BYTES,
        )


class ChatAgent:
    """Answers one chat's messages in order.

    Args:
        journal: The gateway's journal.
        store: The session store.
        adapter: Name of the adapter.
        chat: Id of the chat.
        home: The Hermes directory.
        root: The agent's working directory.
        say: Sends a text immediately and returns the keys of its messages.
        tell: Prints a line for the operator.
        slots: Limits the parallel turns across all chats.
        binding: The adapter's `binding`.
        unasked: The adapter's `unasked`.
        model: Replaces the model in the settings.
    """

    def __init__(  # noqa: PLR0913 - the dependencies of a chat
        self,
        journal: Journal,
        store: SessionStore,
        adapter: str,
        chat: str,
        *,
        home: Path,
        root: Path,
        say: Callable[[str], Awaitable[list[str]]],
        tell: Callable[[str], None],
        slots: asyncio.Semaphore,
        binding: Binding,
        unasked: str = "",
        model: ChatModel | None = None,
    ) -> None:
        self._journal, self._store, self._adapter, self._chat = journal, store, adapter, chat
        self._home, self._root, self._tell, self._model = home, root, tell, model
        self._guard: Guard | None = None
        self._running: asyncio.Task[Entry] | None = None
        self._user = ""  # author of the message being answered
        self._place = Slot(slots)
        self._asking = Asking(say, self._place, binding=binding, unasked=unasked)
        self._terms = Terms()
        self._opening: Opening | None = None
        self._checkpoints = Checkpoints(home / "checkpoints")

    def heard(self, message: Incoming) -> bool:
        """Accept the asked user's answer to a pending question; return whether it is one."""
        return message.user == self._user and self._asking.heard(message)

    async def remind(self, message: Incoming) -> None:
        """Remind the asked user of the pending question after a message that does not answer it."""
        if message.user == self._user:
            await self._asking.remind()

    def stop(self) -> bool:
        """Stop the turn that is running or waiting for a slot; return whether there was one."""
        return self._running is not None and self._running.cancel()

    async def answer(self, entry: Entry) -> Entry:
        """Return the entry with its answer, without storing it. Call `settle` afterwards."""
        word, rest = command_of(entry.message.text)
        self._user = entry.message.user
        try:
            if word:
                return replace(entry, parts=(await self._command(word, rest, entry),))
            self._running = turn = asyncio.create_task(self._turn(entry))
            await asyncio.wait([turn])
            return replace(entry, parts=(STOPPED,)) if turn.cancelled() else turn.result()
        except HermesError as error:
            return replace(entry, parts=(f"✗ {redact(visible(str(error), lines=True))}",))
        finally:
            if self._running is not None and not self._running.done():
                self._running.cancel()
                await asyncio.wait([self._running])
            self._running = None
            self._place.leave()

    async def settle(self, *, look_back: bool = True) -> None:
        """Run a background review if one is due, and close the resources of the last answer."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        try:
            session = opening.current if look_back else None
            if session is not None and (reviews := looking_back(opening, session)) is not None:
                reviews.after_turn(session, live=False)
                await in_thread(reviews.finish)
        finally:
            await opening.aclose()

    async def expire(self, why: str) -> None:
        """End the chat's session, after a background review that saves facts to memory."""
        row = self._row()
        if not row.session:
            return
        opening = self._opened(row)
        try:
            await self._place.take()
            session = await in_thread(opening.session)
            reviews = looking_back(opening, session)
            if reviews is not None and len(session.messages) >= WORTH:
                reviews.begin(session, "memory")
                await in_thread(reviews.finish)
            session.end()
        finally:
            self._place.leave()
            await opening.aclose()
        self._guard = None
        self._journal.keep(replace(row, session="", spent=(*row.spent, row.session)))
        self._tell(f"{self._adapter}: the session of {self._chat} has ended, {why}")

    def _row(self) -> ChatRow:
        return self._journal.chat(self._adapter, self._chat)

    def _opened(
        self, row: ChatRow, send: Callable[[Path, bytes], None] = lambda *_: None
    ) -> Opening:
        """Return a new `Opening` of the chat's session, with the current settings."""
        self._terms = terms = Terms.of(load_settings(home=self._home).gateway)
        overrides = {"model": row.model or None, "approve": terms.approve or None}
        settings = load_settings(home=self._home, overrides=overrides)
        if self._asking.unasked and settings.approve != "never":
            settings = replace(settings, approve="ask")  # refuse even calls that the mode allows
        kept = self._guard if self._guard and self._guard.mode == settings.approve else None
        self._asking.seconds, self._asking.refused = terms.seconds, ""
        opening = Opening(
            settings,
            approver=self._asking,
            tell=self._tell,
            source="chat",
            root=self._root,
            model=self._model,
            own=[send_tool(self._root, send, terms.bytes)],
            joined=lambda store: store.get(row.session) if row.session else None,
            guard=kept,
            checkpoints=self._checkpoints,
            store=self._store,
        )
        self._guard = opening.guard
        return opening

    async def _turn(self, entry: Entry) -> Entry:
        await self._place.take()
        row = self._row()

        def send(source: Path, data: bytes) -> None:
            nonlocal entry
            folder = files_of(self._home, entry.adapter, entry.message.id)
            name = source.name if source.name.isprintable() else plain_name(source.name)
            path = keep_file(folder / key_of(str(source))[:8] / name, data)
            if path not in entry.parts:
                entry = self._journal.note(replace(entry, parts=(*entry.parts, path)))

        self._opening = opening = self._opened(row, send)
        begun = entry.session if entry.state == "begun" else ""
        if begun:
            self._asking.lapsed = True  # it may have asked a question before the crash
            row = replace(row, session=begun)
        title = one_line(f"{self._adapter}: {entry.message.text}", 60)
        session = await in_thread(opening.session, title)
        prompt = _prompt(entry, known=not self._asking.unasked)
        if begun:
            left = list(_turn_messages(session.store, begun, entry.began))
            if left and _is_answer(left[-1]):
                return _answered(entry, left[-1].text)
            prompt = Message.user(GO_ON, origin="ours") if left else prompt
        entry = replace(entry, state="begun", session=session.id, began=entry.began or time.time())
        self._journal.note(entry)
        if row.session != session.id:
            self._journal.keep(replace(row, session=session.id))
        events: list[Event] = []
        async with aclosing(session.turn(prompt, budgets=self._budgets(row, session))) as turn:
            async for event in turn:
                events.append(event)
        if session.id != entry.session:  # another process continued the session, so this is a copy
            self._journal.keep(replace(row, session=session.id))
        made = turn_of(events)
        notice = "" if row.session else traits_of(session.agent.model).notice
        text = f"✗ {made.error}" if made.reason == "failed" else made.note
        refused = self._asking.refused and f"✗ Some calls were refused: {self._asking.refused}."
        return _answered(entry, "\n\n".join(filter(None, (notice, made.text, text, refused))))

    def _budgets(self, row: ChatRow, session: Session) -> list[Budget]:
        limits = self._terms.limits
        if not limits:
            return []
        used = [session_usage(session.store, each) for each in {*row.spent, session.id}]
        return [Budget(limits, scope="this chat", used=sum(used, Usage()))]

    async def _command(self, word: str, rest: str, entry: Entry) -> str:
        row = self._row()
        if self._asking.unasked and (word == "/undo" or (word == "/model" and rest)):
            return f"✗ {word} was not run: {self._asking.unasked}."
        match word:
            case "/new":
                await self.expire("by /new")
                return "A new session begins with your next message."
            case "/model" if redact(rest) != rest:
                raise ConfigError("that looks like an API key, not a model name; it was not saved")
            case "/model" if rest not in ("", "default"):
                self._journal.keep(replace(row, model=rest))
                return f"This chat now uses {rest}; `/model default` reverts that."
            case "/model":
                row = replace(row, model="" if rest else row.model)
                self._journal.keep(row)
                return f"{row.model or await self._configured_model()} is this chat's model."
            case "/undo":
                if entry.state == "begun":  # a second undo would revert two messages
                    return "The gateway was stopped during this undo; check what was undone."
                self._journal.note(replace(entry, state="begun"))
                return await self._undone(row)
            case "/stop":  # `/stop` skips the queue; here it is too late
                return IDLE
            case _:
                pass
        listed = [f"{name}: {about}" for name, about in COMMANDS.items()]
        unknown = word not in (*COMMANDS, BEGIN)
        return "\n".join([f"There is no {word}. The commands are", *listed] if unknown else listed)

    async def _configured_model(self) -> str:
        """Return the name of the model set in the settings."""
        if self._model is not None:
            return self._model.name
        return (await in_thread(build_model, load_settings(home=self._home))).name

    async def _undone(self, row: ChatRow) -> str:
        if not row.session:
            raise ConfigError("this chat has no session, so there is nothing to undo")
        opening = self._opened(row)
        try:
            return await undo_turn(await in_thread(opening.session), self._checkpoints)
        finally:
            await opening.aclose()


def command_of(text: str) -> tuple[str, str]:
    """Return the command in a message's first line in lower case, and its argument.

    Returns "" if there is no command. An existing path is not a command; an unknown command is
    returned, so that it can be reported.
    """
    word, _, rest = text.strip().partition("\n")[0].partition(" ")
    name = word.partition("@")[0].lower()  # `/command@bot`, as used in groups
    is_command = re.fullmatch(r"/[a-z_]+", name) and not Path(word).exists()
    return (name, rest.strip()) if is_command else ("", "")


def _answered(entry: Entry, text: str) -> Entry:
    """Return the entry with the answer's text inserted before its attached files."""
    return replace(entry, parts=(redact(text) or "(no answer)", *entry.parts))


def _turn_messages(store: SessionStore, session: str, began: float) -> Iterator[Message]:
    """Yield the stored messages of the turn that started at `began`, if its prompt was stored.

    Stops at the next prompt, which comes from a notebook that resumed the session.
    """
    found = False
    for row in store.rows(session):
        if row.at >= began and is_prompt(row.message) and not is_ours(row.message):
            if found:
                return
            found = True
        if found and row.state != "undone":
            yield row.message


def _is_answer(message: Message) -> bool:
    whole = message.role == "assistant" and not message.calls and not message.interrupted
    return whole and bool(message.text)


def _prompt(entry: Entry, *, known: bool) -> Message:
    """Return the user's message. Attached and quoted text is marked as untrusted content.

    Unless the sender is `known`, the message itself is untrusted too.
    """
    message = entry.message
    outside = [f"[Quoted, written by someone else:]\n{message.quoted}"] if message.quoted else []
    images = []
    for path in entry.files:
        data = path.read_bytes()
        outside.append(f"[Attached: {path} ({size_text(len(data))})]")
        mime = KINDS.get(kind_of(path, data[:SAMPLE]))
        if mime and len(data) <= MOST_BYTES:
            images.append(Image(base64.b64encode(data).decode("ascii"), mime))
    outside += [f"[Not accepted: {each}]" for each in message.left_out]
    own = Text(WORDLESS, "ours")
    if message.text.strip():
        own = Text(message.text, "user" if known else "outside")
    came = (Text("\n".join(outside), "outside"),) if outside else ()
    return Message(role="user", parts=(own, *came, *images))


def send_tool(root: Path, send: Callable[[Path, bytes], None], most: int) -> Tool:
    """Return the tool that sends a file of at most `most` bytes along with the answer.

    The file is sent as it was at the time of the call, since later changes would not be checked for
    secrets.
    """
    space = Workspace(root=root)

    @tool(toolset="chat", paths=("path",), root=root, exclusive=True)
    def send_file(path: str) -> str:
        """Send a file of the working directory to the user, with your answer."""
        target = space.resolve(path)
        try:
            with space.explained(target):
                data, size = read_regular(target, most)
        except Refused as error:
            raise ToolError(f"{path!r}: {error}") from error
        if size > most:
            raise ToolError(
                f"{path!r} has {size_text(size)}; at most {size_text(most)} can be sent"
            )
        text = data.decode("utf-8", "replace")
        if redact(text) != text:
            raise ToolError(f"{path!r} contains something that looks like a key, so it is not sent")
        send(target, data)
        return f"{path} will be sent with your answer"

    return send_file
