"""A Matrix server and a mail server on loopback, and people who use them without the gateway."""

from __future__ import annotations

import email
import hashlib
import hmac
import itertools
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email import policy
from email.message import EmailMessage
from imaplib import IMAP4
from pathlib import Path
from smtplib import SMTP
from typing import Any
from urllib.parse import quote

from tests.environments import environment
from tests.loopback import free_port
from tests.patience import until

NAME = "loop.test"
SECRET = "s3cret"
LIMITS = "{per_second: 1000, burst_count: 1000}"
SYNAPSE = f"""
server_name: {NAME}
report_stats: false
listeners:
- {{port: PORT, type: http, tls: false, bind_addresses: ["127.0.0.1"],
   resources: [{{names: [client], compress: false}}]}}
pid_file: FOLDER/homeserver.pid
database: {{name: sqlite3, args: {{database: FOLDER/hs.db}}}}
media_store_path: FOLDER/media
signing_key_path: FOLDER/signing.key
registration_shared_secret: {SECRET}
macaroon_secret_key: m
form_secret: f
trusted_key_servers: []
federation_domain_whitelist: []
suppress_key_server_warning: true
max_upload_size: 60M
rc_message: {LIMITS}
rc_registration: {LIMITS}
rc_login: {{address: {LIMITS}, account: {LIMITS}}}
rc_joins: {{local: {LIMITS}}}
rc_invites: {{per_user: {LIMITS}, per_room: {LIMITS}}}
"""


def _stopped(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _up(process: subprocess.Popen[bytes], log: Path, answers: Callable[[], object]) -> None:
    def there() -> bool:
        assert process.poll() is None, log.read_text("utf-8", "replace")[-5000:]
        with suppress(OSError):
            answers()
            return True
        return False

    assert until(there, 60), log.read_text("utf-8", "replace")[-5000:]


@contextmanager
def synapse(folder: Path, port: int = 0) -> Iterator[str]:
    """Run a Matrix server and yield its address; what is in the folder goes on."""
    python, port = environment("synapse") / "bin" / "python", port or free_port()
    config, log = folder / "homeserver.yaml", folder / "log"
    config.write_text(SYNAPSE.replace("PORT", str(port)).replace("FOLDER", str(folder)))
    command = [python, "-m", "synapse.app.homeserver", "-c", config]
    subprocess.run([*command, "--generate-keys"], check=True, capture_output=True, cwd=folder)
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
    url = f"http://127.0.0.1:{port}"

    def answers() -> None:
        urllib.request.urlopen(f"{url}/_matrix/client/versions", timeout=5).close()

    try:
        _up(process, log, answers)
        yield url
    finally:
        _stopped(process)


class Matrix:
    """Somebody with an account on a Matrix server, who speaks its plain interface."""

    def __init__(self, url: str, name: str, password: str = "pw") -> None:
        self.url, self.id, self._numbers = url, f"@{name}:{NAME}", itertools.count()
        self._token, self._since = "", ""
        nonce = self._ask("GET", "/_synapse/admin/v1/register")["nonce"]
        words = "\0".join([nonce, name, password, "notadmin"]).encode()
        mac = hmac.new(SECRET.encode(), words, hashlib.sha1).hexdigest()
        account = {"nonce": nonce, "username": name, "password": password, "mac": mac}
        made = self._ask("POST", "/_synapse/admin/v1/register", {**account, "admin": False})
        self._token = made["access_token"]

    def _ask(self, method: str, path: str, body: object = None, mime: str = "") -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        head = {"Content-Type": mime or "application/json"}
        if self._token:
            head["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url + path, data, head, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            said = response.read()
        return said if "/media/download" in path else json.loads(said or b"{}")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self._ask(method, f"/_matrix/client/v3/{path}", body)

    def room(self, *invited: str, **more: Any) -> str:
        """Make a room and return its id."""
        wants = {"invite": list(invited), "preset": "private_chat", **more}
        return self.ask("POST", "createRoom", wants)["room_id"]

    def say(self, room: str, text: str, **more: Any) -> str:
        return self.send(room, {"msgtype": "m.text", "body": text, **more})

    def send(self, room: str, content: object) -> str:
        """Send the content of a message and return its id."""
        path = f"rooms/{quote(room)}/send/m.room.message/{next(self._numbers)}"
        return self.ask("PUT", path, content)["event_id"]

    def upload(self, room: str, name: str, data: bytes, mime: str, **more: Any) -> str:
        """Send a file and return the message's id."""
        path = f"/_matrix/media/v3/upload?filename={quote(name)}"
        uri = self._ask("POST", path, data, mime)["content_uri"]
        kind = "m.image" if mime.startswith("image/") else "m.file"
        info = {"size": len(data), "mimetype": mime}
        return self.send(room, {"msgtype": kind, "body": name, "url": uri, "info": info, **more})

    def download(self, uri: str) -> bytes:
        return self._ask("GET", f"/_matrix/client/v1/media/download/{uri.removeprefix('mxc://')}")

    def messages(self, room: str) -> list[dict[str, Any]]:
        """Return all messages of a room, oldest first, as they are on the wire."""
        found: list[dict[str, Any]] = []
        at = ""
        while True:
            path = f"rooms/{quote(room)}/messages?dir=b&limit=1000{at}"
            page = self.ask("GET", path)
            found += [each for each in page["chunk"] if each["type"] == "m.room.message"]
            if not page.get("end"):
                return found[::-1]
            at = f"&from={page['end']}"

    def heard(self, room: str, who: str) -> list[str]:
        """Return what somebody has said in a room."""
        told = self.messages(room)
        return [each["content"].get("body", "") for each in told if each["sender"] == who]

    def members(self, room: str) -> dict[str, str]:
        """Return who is in a room, or invited."""
        found = self.ask("GET", f"rooms/{quote(room)}/members")["chunk"]
        return {each["state_key"]: each["content"]["membership"] for each in found}


class MailServer:
    """SMTP on `smtp`, IMAP on `imap`; mails to all but the bot are files in `folder`."""

    bot = f"bot@{NAME}"

    def __init__(self, folder: Path, smtp: int, imap: int) -> None:
        self.folder, self.smtp, self.imap = folder, smtp, imap

    def send(self, message: EmailMessage | bytes, sender: str = f"ada@{NAME}") -> str:
        """Deliver a mail to the bot and return its id."""
        raw = message if isinstance(message, bytes) else message.as_bytes(policy=policy.SMTP)
        with SMTP("127.0.0.1", self.smtp, timeout=60) as server:
            server.sendmail(sender, [self.bot], raw)
        return str(email.message_from_bytes(raw)["Message-ID"])

    def put(self, message: EmailMessage) -> None:
        """Put a mail into the bot's mailbox, past the server that is held up."""
        checked = f"Authentication-Results: mx.{NAME}; dmarc=pass header.from={NAME}\r\n".encode()
        with self._box() as box:
            box.append("INBOX", "", "", checked + message.as_bytes(policy=policy.SMTP))

    def unseen(self) -> list[bytes]:
        """Return the numbers of the mails that are still marked as new."""
        with self._box() as box:
            box.select("INBOX", readonly=True)
            return box.search(None, "UNSEEN")[1][0].split()

    @contextmanager
    def _box(self) -> Iterator[IMAP4]:
        with IMAP4("127.0.0.1", self.imap, timeout=60) as box:
            box.login("demouser", "demopass")
            yield box

    def received(self, who: str = f"ada@{NAME}") -> list[EmailMessage]:
        """Return the mails that somebody has got, in their order."""
        found = []
        for path in sorted((self.folder / who).glob("*.eml")):
            raw = path.read_bytes()
            message = email.message_from_bytes(raw, _class=EmailMessage, policy=policy.default)
            found.append(message)
        return found

    @property
    def hold(self) -> Path:
        """A file: as long as it is there, what was taken is not told to whoever sent it."""
        return self.folder / "hold"


_letters = itertools.count(1)


def letter(text: str, subject: str = "A question", **headers: str) -> EmailMessage:
    """Return a mail from Ada; headers by their names with `_` for `-`."""
    message = EmailMessage(policy=policy.SMTP)
    usual = {
        "From": f"Ada <ada@{NAME}>",
        "To": MailServer.bot,
        "Subject": subject,
        "Message-ID": f"<{next(_letters)}.{time.time_ns()}@{NAME}>",
    }
    for name, value in (usual | {k.replace("_", "-"): v for k, v in headers.items()}).items():
        message[name] = value
    message.set_content(text)
    return message


@contextmanager
def mail_server(folder: Path, smtp: int = 0, imap: int = 0) -> Iterator[MailServer]:
    """Run SMTP and IMAP servers with an empty mailbox."""
    programs = environment("mail") / "bin"
    smtp, imap = smtp or free_port(), imap or free_port()
    log = folder / "log"
    box = [programs / "pymap", "--host", "127.0.0.1", "--port", str(imap), "--no-tls"]
    box += ["--no-service", "managesieve", "--no-service", "admin", "dict"]
    taker = [programs / "python", Path(__file__).with_name("smtp_server.py")]
    taker += [str(smtp), str(imap), folder]
    with log.open("wb") as said:
        mailbox = subprocess.Popen(box, stdout=said, stderr=said)
        server = subprocess.Popen(taker, stdout=said, stderr=said)
    made = MailServer(folder, smtp, imap)
    try:
        _up(mailbox, log, lambda: _greeted(imap))
        _up(server, log, lambda: _greeted(smtp))
        yield made
    finally:
        _stopped(server)
        _stopped(mailbox)


def _greeted(port: int) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", port), 1) as connection:
        assert connection.recv(1)
