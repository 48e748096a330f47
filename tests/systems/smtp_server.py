"""An SMTP server of the tests: what is for the bot goes into its mailbox, all else into files.

Above a mail for the bot it writes whether its sender is the one of the envelope, as mx.loop.test.

Runs in an environment of its own. argv: its port, the port of the IMAP server, the folder.
"""

import asyncio
import email
import imaplib
import itertools
import sys
from email.utils import parseaddr
from pathlib import Path

from aiosmtpd.controller import UnthreadedController
from aiosmtpd.smtp import AuthResult, LoginPassword

PORT, IMAP, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
numbers = itertools.count(1)


def put(data: bytes) -> None:
    box = imaplib.IMAP4("127.0.0.1", IMAP)
    box.login("demouser", "demopass")
    state, said = box.append("INBOX", None, None, data)
    assert state == "OK", said
    box.logout()


def checked(sender: str, data: bytes) -> bytes:
    claimed = parseaddr(str(email.message_from_bytes(data)["From"]))[1]
    verdict = "pass" if sender == claimed else "fail"
    domain = claimed.rpartition("@")[2]
    return (
        f"Authentication-Results: mx.loop.test; dmarc={verdict} header.from={domain}\r\n".encode()
    )


class Taken:
    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        for recipient in envelope.rcpt_tos:
            if recipient == "bot@loop.test":
                data = envelope.original_content
                await asyncio.to_thread(put, checked(envelope.mail_from, data) + data)
            else:
                folder = FOLDER / recipient
                folder.mkdir(exist_ok=True)
                path = folder / f"{next(numbers):06}.eml"
                login = f"X-Login: {session.authenticated}\r\n".encode()
                path.with_suffix(".part").write_bytes(login + envelope.original_content)
                path.with_suffix(".part").rename(path)
        while (FOLDER / "hold").exists():
            await asyncio.sleep(0.01)
        return "250 taken"


def known(server, session, envelope, mechanism, given):
    good = isinstance(given, LoginPassword) and (given.login, given.password) == (
        b"demouser",
        b"demopass",
    )
    return AuthResult(success=good)


loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
controller = UnthreadedController(
    Taken(),
    hostname="127.0.0.1",
    port=PORT,
    authenticator=known,
    auth_require_tls=False,
    data_size_limit=100_000_000,
    loop=loop,
)
controller.begin()
loop.run_forever()
