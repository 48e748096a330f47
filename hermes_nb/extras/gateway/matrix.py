"""Matrix adapter: each room is a chat, and the server de-duplicates by transaction id.

The position in the server's stream is stored in a file, and advances only after the gateway has
stored the messages. If a sync omits messages from a busy room, they are fetched separately. The bot
joins rooms to which an allowed user invites it, and does not react to anyone else.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import aiohttp
import nio

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.extras.gateway.core import (
    Adapter,
    Answer,
    File,
    Incoming,
    NotSent,
    Setup,
    Undeliverable,
    key_of,
)
from hermes_nb.extras.gateway.rendering import html_of

Response = TypeVar("Response")
TIMELINE = 100
"""Maximum events per room in one sync; the servers' default is ten."""
WAIT = 30_000
"""Milliseconds that a sync waits for new events."""
LONGEST_PAUSE = 60.0
KEYS = 1_000
"""Number of the bot's messages to remember, to recognise replies."""
TYPES = ["m.room.message", "m.room.encrypted", "m.room.member"]
NOTHING: dict[str, list[str]] = {"types": []}
FILTER = {
    "presence": NOTHING,
    "account_data": NOTHING,
    "room": {
        "timeline": {"limit": TIMELINE, "types": TYPES},
        "state": {"types": ["m.room.member"], "lazy_load_members": True},
        "ephemeral": NOTHING,
        "account_data": NOTHING,
    },
}
ENCRYPTED = (
    "I cannot read encrypted messages. Please invite me to a room without encryption: "
    "encryption is chosen when a room is created, and cannot be turned off later."
)
OVER = ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN")
"""Error codes that mean the login is no longer valid."""
FOR_GOOD = ("M_BAD_JSON", "M_FORBIDDEN", "M_NOT_FOUND", "M_TOO_LARGE")
"""Error codes for a message that the server will never accept."""
FOUND = 200
AWAY = (aiohttp.ClientError, OSError, TimeoutError)
MXC = re.compile(r"mxc://((?=[^/]*\w)[\w.:\[\]-]+/[\w-]+)", re.ASCII)
"""A file's address: a server, and a file name without characters that could change the path."""


class Refused(Exception):
    """The server responded with an error; `code` is the Matrix error code."""

    def __init__(self, error: nio.ErrorResponse) -> None:
        self.code = str(error.status_code or "")
        super().__init__(one_line(visible(f"{self.code} {error.message}"), 200))


def adapter(setup: Setup) -> Adapter:
    """Return the adapter; raise `ConfigError` if a setting or the library is missing."""
    return MatrixAdapter(setup)


class MatrixAdapter(Adapter):
    """One user of a Matrix server on one device: transaction ids are unique per device.

    `_kept` is stored in a file: the configured `user`, its `id`, `device` and `token`, and the
    `position` in the stream.
    """

    name = "matrix"
    deduplicates = True
    binding = "order"
    most = 16_000

    def __init__(self, setup: Setup) -> None:
        for key in ("homeserver", "user"):
            if not setup.settings.get(key):
                raise ConfigError(f"gateway.matrix.{key} is not set")
        self._setup = setup
        self._server = str(setup.settings["homeserver"]).rstrip("/")
        self._user = str(setup.settings["user"])
        self._password = setup.secret("MATRIX_PASSWORD")
        config = nio.AsyncClientConfig(max_timeouts=1, max_limit_exceeded=10, request_timeout=60)
        self._client = nio.AsyncClient(self._server, self._user, config=config)
        self._logging_in = asyncio.Lock()
        self._file = setup.folder / "state.json"
        self._kept: dict[str, str] = {}
        with suppress(OSError, ValueError):
            self._kept = json.loads(self._file.read_text("utf-8"))
        if self._kept.get("user") != self._user:
            self._kept = {"user": self._user}
        self._latest: dict[str, str] = {}
        self._keys: dict[str, str] = {}  # the keys of the bot's newest messages, by event id
        self._above: dict[str, str] = {}  # the key of the bot's newest message, by room

    def _remember(self, **more: str) -> None:
        self._kept |= more
        make_private(self._setup.folder)
        write_atomic(self._file, json.dumps(self._kept).encode("utf-8"), mode=0o600)

    def _checked(self, response: Response) -> Response:
        """Return the server's response; raise `Refused` for an error."""
        if isinstance(response, nio.ErrorResponse):
            raise Refused(response)
        return response

    async def _ready(self) -> nio.AsyncClient:
        """Return the client, logged in."""
        async with self._logging_in:
            if not self._client.access_token:
                kept = self._kept
                if not kept.get("token"):
                    self._client.device_id = kept.get("device", "")
                    said = self._checked(await self._client.login(self._password, "Hermes"))
                    self._remember(id=said.user_id, device=said.device_id, token=said.access_token)
                self._client.restore_login(kept["id"], kept["device"], kept["token"])
        return self._client

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        position = self._kept.get("position", "")
        pause, was_there = 1.0, bool(position)
        while True:
            try:
                client = await self._ready()
                wait = WAIT if position else 0
                sync = self._checked(
                    await client.sync(wait, sync_filter=FILTER, since=position or None)
                )
                for room, info in sync.rooms.invite.items():
                    await self._invited(room, info)
                # Messages sent before the first start are ignored.
                for room, joined in sync.rooms.join.items() if position else ():
                    for event in await self._events(room, joined.timeline, position):
                        incoming = await self._incoming(room, event)
                        if incoming is not None:
                            yield incoming
                # Servers may cache responses to identical requests, so never repeat a position.
                if sync.rooms.invite or sync.rooms.join or not position:
                    self._remember(position=sync.next_batch)
                position, pause, was_there = sync.next_batch, 1.0, True
            except (Refused, *AWAY) as error:
                if getattr(error, "code", "") in OVER:
                    self._remember(token="")
                    self._client.access_token = ""
                elif isinstance(error, Refused) and not was_there:
                    raise ConfigError(f"gateway.matrix cannot connect: {error}") from error
                pause = min(2 * pause, LONGEST_PAUSE)
                text = one_line(visible(str(error) or type(error).__name__), 200)
                self._setup.tell(f"matrix: {text}; trying again in {pause:g} s")
                await asyncio.sleep(pause)

    async def _invited(self, room: str, info: nio.InviteInfo) -> None:
        """Join a room if an allowed user invites the bot; leave other invitations pending."""
        for event in info.invite_state:
            if not (
                isinstance(event, nio.InviteMemberEvent)
                and (event.membership, event.state_key) == ("invite", self._kept["id"])
            ):
                continue
            if not self._setup.allowed(event.sender, room):
                text = f"{event.sender} is not on the list, so their room {room} is not joined"
                self._setup.tell(f"matrix: {visible(text)}")
                continue
            try:
                self._checked(await self._client.join(room))
            except Refused as error:  # the invitation was withdrawn, or the room is gone
                self._setup.tell(f"matrix: {visible(room)} cannot be joined: {error}")

    async def _events(self, room: str, timeline: nio.Timeline, position: str) -> list[nio.Event]:
        """Return a room's new events, oldest first, including those that the sync omitted.

        Events before the bot's invitation are ignored.
        """
        events, at = list(timeline.events), timeline.prev_batch
        while timeline.limited and at:
            page = self._checked(
                await self._client.room_messages(
                    room, at, end=position, limit=TIMELINE, message_filter={"types": TYPES}
                )
            )
            events[:0] = reversed(page.chunk)
            at = page.end if page.end != at else None
        begins = 0
        for number, event in enumerate(events):
            if isinstance(event, nio.RoomMemberEvent) and (
                (event.state_key, event.membership) == (self._kept["id"], "invite")
            ):
                begins = number
        return events[begins:]

    async def _incoming(self, room: str, event: nio.Event) -> Incoming | None:
        """Return a message by another user, or None for other events.

        Edits are ignored, because the original message has already been received. Bots send
        notices, which are ignored too.
        """
        content = event.source.get("content")
        content = content if isinstance(content, dict) else {}
        related = content.get("m.relates_to")
        related = related if isinstance(related, dict) else {}
        sender = str(event.source.get("sender"))
        if sender == self._kept["id"]:
            self._note(room, event)
        if sender == self._kept["id"] or related.get("rel_type") == "m.replace":
            return None
        allowed = self._setup.allowed(sender, room)
        if event.source.get("type") == "m.room.encrypted" and allowed:
            with suppress(Refused):  # the bot may not have permission
                await self._send_event(
                    room, {"msgtype": "m.notice", "body": ENCRYPTED}, key_of(room)
                )
        if not isinstance(event, nio.RoomMessageText | nio.RoomMessageMedia):
            return None
        self._latest[room] = event.event_id
        text, left_out, files = event.body, "", list[File]()
        if isinstance(event, nio.RoomMessageMedia):
            name = str(content.get("filename") or event.body)
            text = text if text != name else ""
            data, left_out = await self._fetched(event.url) if allowed else (b"", "")
            files += [File(name=name, data=data)] if data else []
            left_out = left_out and f"{name}: {left_out}"
        quoted, text = _parted(text) if "m.in_reply_to" in related else ("", text)
        replied = {} if related.get("is_falling_back") is True else related.get("m.in_reply_to")
        other = str(replied.get("event_id", "")) if isinstance(replied, dict) else ""
        return Incoming(
            id=event.event_id,
            chat=room,
            user=sender,
            text=text,
            quoted=quoted,
            files=tuple(files),
            left_out=(left_out,) if left_out else (),
            replies_to=self._keys.get(other, other),
            after=self._above.get(room, ""),
        )

    def _note(self, room: str, event: nio.Event) -> None:
        """Remember a message that this bot sent, recognised by the event's transaction id."""
        unsigned = event.source.get("unsigned")
        key = unsigned.get("transaction_id") if isinstance(unsigned, dict) else None
        if isinstance(key, str):
            self._keys[event.event_id] = self._above[room] = key
            if len(self._keys) > KEYS:
                del self._keys[next(iter(self._keys))]

    async def _fetched(self, uri: str) -> tuple[bytes, str]:
        """Return a file, or the reason it was rejected; the size in its message may be wrong."""
        most, data = self._setup.max_bytes, bytearray()
        if not (named := MXC.fullmatch(uri)):
            return b"", "its address is not the address of a file"
        where = f"{self._server}/_matrix/client/v1/media/download/{named[1]}"
        head = {"Authorization": f"Bearer {self._client.access_token}"}
        try:
            async with self._client.client_session.get(where, headers=head) as response:
                if response.status != FOUND:
                    return b"", f"the server refused it ({response.status})"
                async for piece in response.content.iter_chunked(2**16):
                    data += piece
                    if len(data) > most:
                        return b"", f"it has more than {most:,} bytes"
        except AWAY as error:
            return b"", one_line(visible(f"it could not be downloaded ({error})"), 200)
        return bytes(data), "" if data else "it is empty"

    async def send(self, answer: Answer) -> None:
        try:
            await self._send(answer)
        except Refused as error:
            kind = Undeliverable if error.code in FOR_GOOD else NotSent
            raise kind(f"{answer.chat} does not accept it: {error}") from error

    async def _send(self, answer: Answer) -> None:
        if answer.file is None:
            content: dict[str, Json] = {
                "msgtype": "m.text",
                "body": answer.text,
                "format": "org.matrix.custom.html",
                "formatted_body": html_of(answer.text),
            }
        else:
            content = await self._uploaded(answer.file)
        if answer.to and self._latest.get(answer.chat, answer.to) != answer.to:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": answer.to}}
        await self._send_event(answer.chat, content, answer.key)

    async def _uploaded(self, path: Path) -> dict[str, Json]:
        """Upload a file and return the content of the message that displays it."""
        data = await in_thread(path.read_bytes)
        mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        client = await self._ready()
        said, _ = await client.upload(BytesIO(data), mime, path.name, filesize=len(data))
        return {
            "msgtype": "m.image" if mime.startswith("image/") else "m.file",
            "body": path.name,
            "filename": path.name,
            "url": self._checked(said).content_uri,
            "info": {"mimetype": mime, "size": len(data)},
        }

    async def _send_event(self, room: str, content: dict[str, Json], key: str) -> None:
        client = await self._ready()
        self._checked(await client.room_send(room, "m.room.message", content, tx_id=key))

    async def acknowledge(self, message: Incoming) -> None:
        """Mark the message as read."""
        client = await self._ready()
        self._checked(await client.update_receipt_marker(message.chat, message.id))

    async def working(self, chat: str) -> None:
        self._checked(await (await self._ready()).room_typing(chat, timeout=15_000))

    async def aclose(self) -> None:
        await self._client.close()


def _parted(text: str) -> tuple[str, str]:
    """Split off the quoted message that older clients repeat at the start of a reply."""
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines) if not line.startswith(">")), len(lines))
    return "\n".join(lines[:end]), "\n".join(lines[end:]).strip() if end else text
