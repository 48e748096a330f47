"""A mailbox on loopback: as much of IMAP and SMTP as the gateway's mail adapter speaks."""

from __future__ import annotations

import email
import re
import socketserver
import threading
from email import policy
from email.message import EmailMessage

BOT, ADA, BOB = "bot@loop.test", "ada@loop.test", "bob@loop.test"


class _Imap(socketserver.StreamRequestHandler):
    """One connection: numbers are those of the list, from 1 on."""

    def handle(self):
        self.wfile.write(b"* OK ready\r\n")
        for line in self.rfile:
            tag, _, command = line.decode().strip().partition(" ")
            self.wfile.write(self.said(command) + f"{tag} OK done\r\n".encode())

    def said(self, command):
        box, words = self.server.box, command.split()
        if command.startswith("CAPABILITY"):
            return b"* CAPABILITY IMAP4rev1\r\n"
        if command.startswith("SELECT"):
            return b"* 1 EXISTS\r\n* OK [UIDVALIDITY 1] valid\r\n"
        if command.startswith("UID SEARCH"):
            return f"* SEARCH {' '.join(map(str, box.unseen()))}\r\n".encode()
        if command.startswith("UID STORE"):
            box.seen.add(int(words[2]))
        if command.startswith("UID FETCH"):
            raw = box.mails[int(words[2]) - 1]
            part = raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if "HEADER" in command else raw
            most = re.search(r"<0\.(\d+)>", command)
            part = part[: int(most[1])] if most else part
            about = f"* 1 FETCH (UID {words[2]} RFC822.SIZE {len(raw)} BODY[] {{{len(part)}}}\r\n"
            return about.encode() + part + b")\r\n"
        return b""


class _Smtp(socketserver.StreamRequestHandler):
    """One connection: every mail is taken."""

    def handle(self):
        self.wfile.write(b"220 ready\r\n")
        for line in self.rfile:
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                data = b"".join(each.removeprefix(b".") for each in lines)
                self.server.box.sent.append(
                    email.message_from_bytes(data, _class=EmailMessage, policy=policy.default)
                )
            self.wfile.write(b"250 ok\r\n" if word != b"QUIT" else b"221 bye\r\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


class Mailbox:
    """Mails in `mails`, oldest first, and what the bot has `sent`; `seen` are numbers."""

    def __init__(self):
        self.mails, self.sent, self.seen = [], [], set()
        self._servers = [_Server(("127.0.0.1", 0), each) for each in (_Imap, _Smtp)]
        for server in self._servers:
            server.box = self
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        imap, smtp = (f"127.0.0.1:{server.server_address[1]}" for server in self._servers)
        self.settings = {
            "address": BOT, "imap": imap, "smtp": smtp, "user": "bot", "tls": False, "every": 1,
            "allow": [ADA, BOB],
        }  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def unseen(self):
        return [number for number in range(1, len(self.mails) + 1) if number not in self.seen]


def raw(headers, text):
    """Return a mail of headers as they are, in this order."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{head}\r\n{text}\r\n".encode("utf-8", "surrogateescape")
