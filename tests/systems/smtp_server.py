"""An SMTP server of the tests: what is for the bot goes into its mailbox, all else into files.

Runs in an environment of its own. argv: its port, the port of the IMAP server, the folder.
"""

import asyncio
import imaplib
import itertools
import sys
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


class Taken:
    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        for recipient in envelope.rcpt_tos:
            if recipient == "bot@loop.test":
                await asyncio.to_thread(put, envelope.original_content)
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
