"""Telegram adapter for the Bot API: private chats, groups, photos and documents, both ways.

Requesting the next updates confirms the previous ones, which are already in the journal by then.
The service does not de-duplicate: a message that may have been sent before a crash is sent again
with a note.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import suppress

from telegram import Bot, LinkPreviewOptions, Message, PhotoSize
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
)
from telegram.request import HTTPXRequest

from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.gateway.core import (
    Adapter,
    Answer,
    File,
    Incoming,
    NotSent,
    Setup,
    Undeliverable,
)
from hermes_nb.extras.gateway.rendering import telegram_html_of

POLL = 30
"""Seconds that the service may keep a request for updates open."""
PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0)
MOST_UP, MOST_DOWN = 50_000_000, 20_000_000
"""Maximum sizes in bytes of a file that a bot can send and download."""
PICTURES = frozenset((".png", ".jpg", ".jpeg"))
NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
"""Disables link previews, because the service would open links in answers and so leak their
contents."""
KEYS = 100
"""Number of the bot's messages per chat to remember, to recognise replies."""
AGAIN = "(sent again: this may be a copy)"


class Telegram(Adapter):
    """A bot with the token in `TELEGRAM_BOT_TOKEN`."""

    name = "telegram"
    binding = "order"
    most = 4_000  # the limit is 4,096; leave space for a note

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._sent: dict[int, dict[int, str]] = {}  # keys of the newest messages, by chat and id
        root = str(setup.settings.get("base_url") or "https://api.telegram.org").rstrip("/")
        self._requests = HTTPXRequest(), HTTPXRequest(read_timeout=POLL + 10.0)
        self._named = str(setup.settings.get("token_env") or "TELEGRAM_BOT_TOKEN")
        self._bot = Bot(
            setup.secret(self._named),
            base_url=f"{root}/bot",
            base_file_url=f"{root}/file/bot",
            request=self._requests[0],
            get_updates_request=self._requests[1],
        )

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """Yield messages, with files only from allowed users."""
        failures = offset = 0
        started = False
        while True:
            try:
                if not started:
                    await self._bot.initialize()
                    await self._bot.delete_webhook()
                    started = True
                updates = await self._bot.get_updates(
                    offset=offset, timeout=POLL, allowed_updates=["message"]
                )
                failures = 0
            except InvalidToken as error:  # its text contains the token
                raise ConfigError(
                    f"Telegram does not accept the bot token in {self._named}"
                ) from error
            except TelegramError as error:
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                failures += 1
                self._setup.tell(f"telegram: {error}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
                continue
            for update in updates:
                message = update.message
                if (
                    message is not None
                    and message.from_user is not None
                    and _is_user_message(message)
                ):
                    yield await self._incoming(update.update_id, message)
                offset = update.update_id + 1

    async def _incoming(self, number: int, message: Message) -> Incoming:
        user, chat = str(message.from_user.id if message.from_user else ""), str(message.chat.id)
        sticker = message.sticker.emoji if message.sticker else ""
        text = message.text or message.caption or sticker or ""
        files, left_out = [], []
        if self._setup.allowed(user, chat):
            attached = _attached(message)
            if message.effective_attachment and not (attached or text):
                left_out.append("something that is neither an image nor a file")
            for each, name in attached:
                size = each.file_size or 0
                if size > min(MOST_DOWN, self._setup.max_bytes):
                    left_out.append(f"{name}: {size / 1e6:.1f} MB are too large")
                    continue
                try:
                    found = await each.get_file()
                    files.append(File(name=name, data=bytes(await found.download_as_bytearray())))
                except TelegramError as error:
                    left_out.append(f"{name}: {error}")
        # Text from an inline bot is not the user's own either.
        forwarded = message.forward_origin is not None or message.via_bot is not None
        sent, other = self._sent.get(message.chat.id, {}), message.reply_to_message
        if other is not None and other.forum_topic_created is not None:
            other = None  # every message in a topic replies to its creation
        above = max((each for each in sent if each < message.message_id), default=0)
        return Incoming(
            id=str(number),
            chat=chat,
            user=user,
            text="" if forwarded else text,
            quoted=text if forwarded else self._quoted(message),
            files=tuple(files),
            left_out=tuple(left_out),
            receipt=str(message.message_id),
            replies_to=sent.get(other.message_id, f"message {other.message_id}") if other else "",
            after=sent.get(above, ""),
        )

    def _quoted(self, message: Message) -> str:
        """Return the text of the message replied to, if another user wrote it."""
        other = message.reply_to_message
        if other is None or other.from_user in (self._bot.bot, message.from_user):
            return ""
        return other.text or other.caption or ""

    async def send(self, answer: Answer) -> None:
        """Send text, a photo or a document."""
        if not re.fullmatch(r"-?\d+", answer.chat):
            raise Undeliverable(f"{answer.chat!r} is not a chat; give its number")
        chat = int(answer.chat)
        try:
            message = await self._posted(chat, answer)
        except RetryAfter as error:
            raise NotSent(f"Telegram asks to wait: {error}") from error
        except (Forbidden, BadRequest, ChatMigrated) as error:
            raise Undeliverable(f"Telegram refuses: {error}") from error
        except OSError as error:
            raise Undeliverable(str(error)) from error
        except NetworkError as error:
            if "ConnectError" in str(error):  # nothing was sent
                raise NotSent(str(error)) from error
            raise
        sent = self._sent.setdefault(chat, {})
        sent[message.message_id] = answer.key
        if len(sent) > KEYS:
            del sent[min(sent)]

    async def _posted(self, chat: int, answer: Answer) -> Message:
        """Send an answer and return its message."""
        mark = AGAIN if answer.again else ""
        if answer.file is None:
            text = "\n\n".join(filter(None, (mark, answer.text)))
            with suppress(BadRequest):  # unsupported tags
                return await self._bot.send_message(
                    chat,
                    telegram_html_of(text),
                    parse_mode="HTML",
                    link_preview_options=NO_PREVIEW,
                )
            return await self._bot.send_message(chat, text, link_preview_options=NO_PREVIEW)
        data = answer.file.read_bytes()
        if len(data) > MOST_UP:
            raise Undeliverable(f"{len(data) / 1e6:.0f} MB are more than Telegram accepts")
        if answer.file.suffix.lower() in PICTURES:
            with suppress(BadRequest):  # too large in pixels, or not an image
                return await self._bot.send_photo(chat, data, caption=mark)
        return await self._bot.send_document(chat, data, filename=answer.file.name, caption=mark)

    async def working(self, chat: str) -> None:
        """Show "typing"."""
        await self._bot.send_chat_action(int(chat), "typing")

    async def aclose(self) -> None:
        """Close the connections."""
        for request in self._requests:
            await request.shutdown()


def _is_user_message(message: Message) -> bool:
    """Return whether a user wrote the message, as opposed to a service message such as a join."""
    return bool(message.text or message.caption or message.effective_attachment)


def _attached(message: Message) -> list[tuple[PhotoSize, str]]:
    """Return the attachments that can be downloaded, with names."""
    found = [(message.photo[-1], f"photo-{message.message_id}.jpg")] if message.photo else []
    for kind in ("document", "audio", "video", "voice", "animation"):
        if (each := getattr(message, kind)) is not None:
            found.append((each, getattr(each, "file_name", None) or f"{kind}-{message.message_id}"))
    return found


def adapter(setup: Setup) -> Telegram:
    """Return the adapter."""
    return Telegram(setup)
