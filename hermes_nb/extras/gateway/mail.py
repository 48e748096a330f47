"""Email adapter: receives over IMAP and answers over SMTP. Each thread is a chat.

Unseen emails are pending. An email is marked as seen once it has been answered. Emails from unknown
senders, programs and mailing lists are left unchanged. Answers are only sent to the sender's
allowed address, even if an email's headers contain a different one.

An answer's Message-ID is random and recorded, and stays the same when it is sent again. An email
belongs to a chat only if it replies to an id that was sent to its sender's address. It answers a
question only if it replies to that question's id.
"""

from __future__ import annotations

import asyncio
import imaplib
import ipaddress
import json
import mimetypes
import re
import smtplib
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from email import policy
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial
from secrets import token_hex
from typing import TypedDict, TypeVar

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.json_values import clean_text
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
    number_in,
)
from hermes_nb.extras.gateway.mail_message import Mail, authenticated, parsed, read_mail
from hermes_nb.extras.gateway.rendering import html_of

SECONDS = 60
"""Timeout for mail servers in seconds."""
EVERY = 15.0
"""Seconds between checks of the mailbox."""
LONGEST_PAUSE = 300.0
GROWTH = 1.4
"""Factor by which encoding enlarges an attached file."""
FOR_GOOD = 500
"""SMTP codes from this value up are permanent errors."""
HEAD = 200_000
"""Maximum bytes to read of an email's headers, and of an email that is too large."""
MOST_SENT = 1_000
"""Number of newest emails in a chat that can be replied to."""
JOBS = "jobs"
"""Name of the stored `Note` for emails that start a chat, such as reports from scheduled jobs."""
UNCHECKED = (
    "senders of mail are not verified, so calls cannot be approved by mail. To allow it, set "
    "gateway.mail.checked_by in config.yaml to the mail server that verifies senders"
)
COPY = "(This may be a second copy: Hermes was interrupted while it sent this answer.)\n\n"
FAILED = (OSError, imaplib.IMAP4.error)
"""`imaplib` raises `abort`, a subclass of `error`, when a connection is lost."""
Found = bytes | tuple[bytes, bytes] | None
"""An item of an `imaplib` response; tuples hold a literal and the text before it."""
Result = TypeVar("Result")


class Note(TypedDict, total=False):
    """A chat's stored state.

    Notes written by older versions have no `sent`, so a reply to an older email starts a new chat.
    """

    to: str
    """The user's address."""
    subject: str
    """The last email's subject."""
    thread: list[str]
    """The thread's Message-IDs."""
    sent: dict[str, str]
    """Keys of sent answers, by the random part of their Message-IDs."""


def adapter(setup: Setup) -> Adapter:
    """Return the adapter; raise `ConfigError` if a setting is missing."""
    return MailAdapter(setup)


class MailAdapter(Adapter):
    """One mailbox. Its connection is used by one thread at a time, under `_lock`."""

    name = "mail"
    binding = "reply"

    def __init__(self, setup: Setup) -> None:
        given = {key: str(value).strip() for key, value in setup.settings.items()}
        missing = [key for key in ("address", "imap", "smtp") if not given.get(key)]
        if missing:
            raise ConfigError(f"gateway.mail.{missing[0]} is not set")
        if odd := [each for each in setup.settings.get("allow", []) if each != str(each).lower()]:
            raise ConfigError(f"write {odd[0]!r} in gateway.mail.allow in lower case")
        self._setup = setup
        self._address = given["address"].lower()
        self._user = given.get("user") or self._address
        self._folder = given.get("folder") or "INBOX"
        self._checked_by = given.get("checked_by", "")
        self.unasked = "" if self._checked_by else UNCHECKED
        self._every = max(1.0, number_in(setup.settings, "every", EVERY, of="gateway.mail"))
        self._tls = given.get("tls", "true").lower()
        self._imap = _host(given["imap"], 143 if self._tls == "starttls" else 993)
        self._smtp = _host(given["smtp"], 587 if self._tls == "starttls" else 465)
        if self._tls not in ("true", "starttls") and not (
            _is_here(self._imap[0]) and _is_here(self._smtp[0])
        ):
            raise ConfigError(
                "gateway.mail.tls must be true or starttls, or the password is sent in clear text"
            )
        self._password = setup.secret("MAIL_PASSWORD")
        if self.unasked:
            setup.tell(f"mail: {UNCHECKED}")
        self._lock = threading.Lock()
        self._noting = threading.Lock()
        self._box: imaplib.IMAP4 | None = None
        self._validity = ""
        self._looked_at: set[bytes] = set()

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        pause, was_there = self._every, False
        while True:
            try:
                for uid in await in_thread(self._with_box, self._unseen):
                    try:
                        incoming = await in_thread(self._with_box, partial(self._read, uid))
                    except FAILED:
                        raise
                    # A single email must not end the gateway.
                    except Exception as error:  # noqa: BLE001
                        self._setup.tell(
                            f"mail: number {uid.decode()} is skipped: {_error_text(error)}"
                        )
                        incoming = None
                    self._looked_at.add(uid)
                    if incoming is not None:
                        yield incoming
                pause, was_there = self._every, True
            except FAILED as error:
                if not was_there and isinstance(error, imaplib.IMAP4.error):
                    raise ConfigError(
                        f"the mailbox cannot be opened: {_error_text(error)}"
                    ) from error
                pause = min(2 * pause, LONGEST_PAUSE)
                self._setup.tell(f"mail: {_error_text(error)}; trying again in {pause:g} s")
            await asyncio.sleep(pause)

    def _with_box(self, work: Callable[[imaplib.IMAP4], Result]) -> Result:
        """Run `work` with the open mailbox. After a failure, the next call reconnects."""
        with self._lock:
            try:
                if self._box is None:
                    self._box = self._opened()
                return work(self._box)
            except BaseException:
                self._close()
                raise

    def _opened(self) -> imaplib.IMAP4:
        host, port = self._imap
        context = ssl.create_default_context()
        if self._tls == "true":
            box: imaplib.IMAP4 = imaplib.IMAP4_SSL(host, port, ssl_context=context, timeout=SECONDS)
        else:
            box = imaplib.IMAP4(host, port, timeout=SECONDS)
        if self._tls == "starttls":
            box.starttls(context)
        box.login(self._user, self._password)
        _ok(box.select(f'"{self._folder}"'))
        validity = str(box.response("UIDVALIDITY")[1])
        if validity != self._validity:  # the UIDs are no longer valid
            self._validity, self._looked_at = validity, set()
        return box

    def _close(self) -> None:
        if self._box is not None:
            with suppress(*FAILED):
                self._box.shutdown()
        self._box = None

    def _unseen(self, box: imaplib.IMAP4) -> list[bytes]:
        """Return the UIDs of unseen emails that have not been checked yet, oldest first."""
        box.noop()
        (found,) = _ok(box.uid("SEARCH", "UNSEEN"))
        numbers = found.split() if isinstance(found, bytes) else []
        return sorted(set(numbers) - self._looked_at, key=int)

    def _read(self, uid: bytes, box: imaplib.IMAP4) -> Incoming | None:
        """Return an email to be answered, or None for others, whose headers alone are fetched."""
        about, head = _fetched(box, uid, f"(RFC822.SIZE BODY.PEEK[HEADER]<0.{HEAD}>)")
        if not self._is_welcome(read_mail(head), head):
            return None
        size = int((re.search(rb"RFC822\.SIZE (\d+)", about) or [b"", b"0"])[1])
        most = int(GROWTH * self._setup.max_bytes)
        part = "(BODY.PEEK[])" if size <= most else f"(BODY.PEEK[]<0.{HEAD}>)"
        mail = read_mail(_fetched(box, uid, part)[1])
        files, left_out = mail.files, () if mail.whole else ("its parts: they cannot be parsed",)
        if size > most:
            files, left_out = (), (f"its attachments: the mail has {size:,} bytes",)
        chat, replies_to = self._chat_of(mail)
        return Incoming(
            id=f"{mail.sender} {mail.id}",
            chat=f"{mail.sender} {chat}",
            user=mail.sender,
            text=_with_subject(mail),
            quoted=mail.quoted,
            files=tuple(File(name=each.name, data=each.data) for each in files),
            left_out=left_out,
            receipt=f"{self._validity} {uid.decode()}",
            replies_to=replies_to,
        )

    def _is_welcome(self, mail: Mail, head: bytes) -> bool:
        """Return whether to answer an email; report an email whose sender could not be verified."""
        if mail.automatic or mail.sender in ("", self._address):
            return False
        if not self._setup.allowed(mail.sender, mail.sender):
            return False
        if len(head) >= HEAD:  # the part that was not read may contradict it
            why = "its headers are too long"
        elif not self._checked_by or authenticated(
            parsed(head), self._checked_by, mail.sender.rpartition("@")[2]
        ):
            return True
        else:
            why = f"{self._checked_by} does not confirm that {mail.sender} sent it"
        self._setup.tell(f"mail: {visible(mail.id)} is not answered: {why}")
        return False

    def _chat_of(self, mail: Mail) -> tuple[str, str]:
        """Return an email's chat and the key of the answer it replies to; store the chat's note."""
        with self._noting:
            replied = self._sent_to(mail.sender, mail.replies_to)
            others = (self._sent_to(mail.sender, each) for each in reversed(mail.thread))
            name, _ = replied or next(filter(None, others), (token_hex(8), ""))
            note = self._noted(name, mail.sender)
            note["to"], note["subject"] = mail.sender, mail.subject
            note["thread"] = [*mail.thread[:1], *mail.thread[1:][-10:], mail.id]
            self._note(name, note)
        return name, replied[1] if replied else mail.replies_to

    def _sent_to(self, address: str, message: str) -> tuple[str, str] | None:
        """Return the chat and the key of an answer sent to an address, given its Message-ID."""
        if not (named := re.fullmatch(r"<([0-9a-f]{16})\.([0-9a-f]{32})@[^>]*>", message)):
            return None
        key = self._noted(named[1], address).get("sent", {}).get(named[2])
        return (named[1], key) if key else None

    def _noted(self, name: str, address: str) -> Note:
        """Return the note of chat `name`, or {} if it is missing or belongs to another address."""
        try:
            note: Note = json.loads((self._setup.folder / f"{name}.json").read_text("utf-8"))
            return note if note.get("to") == address else {}
        except (OSError, ValueError, AttributeError):  # missing, damaged, or not a note
            return {}

    def _note(self, name: str, note: Note) -> None:
        make_private(self._setup.folder)
        data = json.dumps(note, ensure_ascii=False).encode("utf-8")
        write_atomic(self._setup.folder / f"{name}.json", data, mode=0o600)

    def _outgoing(self, answer: Answer) -> tuple[Note, str]:
        """Return the note of an answer's chat, and its recorded Message-ID."""
        address, _, name = answer.chat.partition(" ")
        with self._noting:
            if not re.fullmatch(r"[0-9a-f]{16}", name):  # an email that starts a chat
                name = self._random(JOBS, "", f"{answer.key} {address}", 8)[1]
            note, random = self._random(name, address, answer.key, 16)
        return note, f"<{name}.{random}@{self._address.rpartition('@')[2]}>"

    def _random(self, name: str, address: str, key: str, size: int) -> tuple[Note, str]:
        """Return a note and its random name for the answer `key`, creating them if necessary."""
        note = self._noted(name, address)
        sent = note.get("sent", {})
        found = next((each for each, its in sent.items() if its == key), "")
        if not found:
            found = token_hex(size)
            newest = [*sent.items(), (found, key)][-MOST_SENT:]
            note["to"], note["sent"] = address, dict(newest)
            self._note(name, note)
        return note, found

    async def acknowledge(self, message: Incoming) -> None:
        validity, _, uid = message.receipt.rpartition(" ")

        def mark(box: imaplib.IMAP4) -> None:
            if validity == self._validity:
                _ok(box.uid("STORE", uid, "+FLAGS", r"(\Seen \Answered)"))

        await in_thread(self._with_box, mark)

    async def send(self, answer: Answer) -> None:
        message = await in_thread(self._composed, answer)
        await in_thread(self._sent, message)

    def _composed(self, answer: Answer) -> EmailMessage:
        """Return an answer as an email; it starts a thread if the chat is only an address."""
        note, own = self._outgoing(answer)
        text = answer.text or (answer.file.name if answer.file else "")
        subject = str(note.get("subject") or one_line(text.strip().partition("\n")[0], 60))
        message = EmailMessage(policy=policy.SMTP)
        message["From"] = self._address
        message["To"] = answer.chat.partition(" ")[0]
        thread = note.get("thread", [])
        replies = re.match(r"(re|aw|sv|antw)\s*:", subject, re.IGNORECASE) or not thread
        message["Subject"] = visible(subject if replies else f"Re: {subject}")
        message["Date"] = formatdate(localtime=True)
        message["Message-ID"] = own
        if thread:
            to = answer.to.rpartition(" ")[2]
            message["In-Reply-To"] = to or thread[-1]
            message["References"] = " ".join(dict.fromkeys([*thread, *([to] if to else [])]))
        message["Auto-Submitted"] = "auto-replied"
        message["X-Auto-Response-Suppress"] = "All"
        if answer.again:
            message["X-Hermes-Copy"] = "possible"
        copy = COPY if answer.again else ""
        message.set_content(copy + clean_text(text))
        message.add_alternative(html_of(copy + text), subtype="html")
        if answer.file is not None:
            mime = mimetypes.guess_type(answer.file.name)[0] or "application/octet-stream"
            main, _, sub = mime.partition("/")
            data = answer.file.read_bytes()
            message.add_attachment(data, maintype=main, subtype=sub, filename=answer.file.name)
        return message

    def _sent(self, message: EmailMessage) -> None:
        """Send an email.

        Raises:
            NotSent: the server has definitely not accepted it.
            Undeliverable: the server refuses it permanently.
        """
        host, port = self._smtp
        context = ssl.create_default_context()
        try:
            if self._tls == "true":
                server: smtplib.SMTP = smtplib.SMTP_SSL(
                    host, port, timeout=SECONDS, context=context
                )
            else:
                server = smtplib.SMTP(host, port, timeout=SECONDS)
            if self._tls == "starttls":
                server.starttls(context=context)
            server.ehlo()
            if server.has_extn("auth"):
                server.login(self._user, self._password)
        except (OSError, smtplib.SMTPException) as error:
            raise NotSent(f"{host} cannot be reached: {_error_text(error)}") from error
        try:
            server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            kind = NotSent if min(codes) < FOR_GOOD else Undeliverable
            raise kind(f"{host} does not accept it: {_error_text(error)}") from error
        # An address that the server does not support.
        except (ValueError, smtplib.SMTPNotSupportedError) as error:
            raise Undeliverable(
                f"{host} does not support the address: {_error_text(error)}"
            ) from error
        except smtplib.SMTPResponseException as error:
            kind = NotSent if error.smtp_code < FOR_GOOD else Undeliverable
            raise kind(f"{host} does not accept it: {_error_text(error)}") from error
        finally:
            with suppress(OSError, smtplib.SMTPException):  # accepted or refused by now
                server.quit()

    async def aclose(self) -> None:
        with self._lock:
            self._close()


def _host(given: str, port: int) -> tuple[str, int]:
    """Parse `HOST[:PORT]`; raise `ConfigError` if it is invalid."""
    host, _, number = given.partition(":")
    if not host or not (number or "0").isdecimal():
        raise ConfigError(f"{given!r} is not a server; use HOST or HOST:PORT")
    return host, int(number or port)


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _ok(answer: tuple[str, Sequence[Found]]) -> Sequence[Found]:
    """Return a response's data; raise `IMAP4.error` unless its status is OK."""
    state, data = answer
    if state != "OK":
        raise imaplib.IMAP4.error(str(data[:1]))
    return data


def _fetched(box: imaplib.IMAP4, uid: bytes, what: str) -> tuple[bytes, bytes]:
    """Return an email's metadata and the requested data; both are empty if it is gone."""
    found = _ok(box.uid("FETCH", uid.decode(), what))
    around = b" ".join(each[0] if isinstance(each, tuple) else each or b"" for each in found)
    return around, next((each[1] for each in found if isinstance(each, tuple)), b"")


def _error_text(error: BaseException) -> str:
    return one_line(visible(str(error) or type(error).__name__), 200)


_ANSWERS = re.compile(r"(re|aw|sv|antw|fwd?|wg|tr|rv)\s*:", re.IGNORECASE)
"""Subject prefixes of replies and forwarded emails, whose subject is someone else's."""


def _with_subject(mail: Mail) -> str:
    """Return the user's text, preceded by the subject if the email starts a thread."""
    begins = not mail.thread and not _ANSWERS.match(mail.subject) and not mail.text.startswith("/")
    return "\n\n".join(filter(None, [mail.subject if begins else "", mail.text]))
