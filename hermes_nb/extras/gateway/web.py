"""A local web page for trying the gateway, with a chat and its files.

It listens on 127.0.0.1 only, and requires the token in the printed address. The chat is stored in a
file, so the page behaves like any other service: unacknowledged messages are delivered again after
a crash, and duplicates are displayed once.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import mimetypes
import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.netutil import bind_sockets
from tornado.routing import Router
from tornado.web import Application, HTTPError, RequestHandler

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import append_line, make_private, write_atomic
from hermes_nb.core.threads import in_thread
from hermes_nb.extras.gateway.core import Adapter, Answer, File, Incoming, Setup, number_in
from hermes_nb.extras.gateway.rendering import html_of
from hermes_nb.safety.redact import redact

PORT = 8767
PAGE = Path(__file__).with_name("page.html")
WAIT = 20.0
"""Seconds that a request waits for new messages."""
KEPT = 500
"""Maximum number of older messages displayed when the page is opened."""
PICTURES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))


class ChatLine(TypedDict, total=False):
    """A line in the chat file."""

    by: str
    """Author: `you`, `hermes`, or `ack` for an acknowledgement."""
    key: str
    """Key of the message."""
    text: str
    """The text; "" for an `ack`."""
    files: list[str]
    """Paths of attached files."""
    after: str
    """Key of the last answer displayed when the message was typed; "" if there was none."""


class WebPage(Adapter):
    """The web page at the configured `port`; 0 selects a free port."""

    name = "web"
    deduplicates = True
    binding = "order"

    def __init__(self, setup: Setup) -> None:
        self._setup, self._folder, self.most_bytes = setup, setup.folder, setup.max_bytes
        self._file = setup.folder / "said.jsonl"
        self._lines: list[ChatLine] = []
        self._keys: set[str] = set()
        self._open: set[str] = set()
        self._arrived: asyncio.Queue[ChatLine] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._server: HTTPServer | None = None
        self.url = ""
        self.token = ""

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """Yield unacknowledged messages, then newly typed ones."""
        await in_thread(self._load)
        self._listen()
        for line in self._lines:
            if line["by"] == "you" and line["key"] in self._open:
                self._arrived.put_nowait(line)
        while True:
            line = await self._arrived.get()
            files = [Path(each) for each in line["files"]]
            yield Incoming(
                id=line["key"],
                chat="page",
                user="you",
                text=line["text"],
                after=line.get("after", ""),
                files=tuple(
                    File(name=path.name, data=path.read_bytes()) for path in files if path.is_file()
                ),
            )

    async def send(self, answer: Answer) -> None:
        """Display an answer, once per key."""
        files = [str(answer.file)] if answer.file is not None else []
        await self.add(ChatLine(by="hermes", key=answer.key, text=answer.text, files=files))

    async def acknowledge(self, message: Incoming) -> None:
        """Record that a message has been answered."""
        await self.add(ChatLine(by="ack", key=message.id, text="", files=[]))

    async def aclose(self) -> None:
        """Close the server."""
        if self._server is not None:
            self._server.stop()
            await self._server.close_all_connections()

    async def typed(self, text: str, files: list[File], seen: int) -> None:
        """Store and deliver a message typed after `seen` lines were displayed."""
        key = secrets.token_hex(8)
        above = [line["key"] for line in self._lines[:seen] if line["by"] == "hermes"]
        paths = []
        for number, file in enumerate(files):
            folder = self._folder / "files" / f"{key}-{number}"
            make_private(folder)
            paths.append(folder / (Path(file.name).name or "file"))
            await in_thread(write_atomic, paths[-1], file.data, mode=0o600)
        names, after = [str(path) for path in paths], above[-1] if above else ""
        line = ChatLine(by="you", key=key, text=text, files=names, after=after)
        await self.add(line)
        self._arrived.put_nowait(line)

    async def add(self, line: ChatLine) -> None:
        """Store a line durably and display it, unless its key is known."""
        key = f"{line['by']} {line['key']}"
        if key in self._keys:
            return
        self._keys.add(key)
        kept = ChatLine(**{**line, "text": redact(line["text"])})
        data = json.dumps(kept).encode() + b"\n"
        try:
            await in_thread(append_line, self._file, data, durable=True)
        except BaseException:
            self._keys.discard(key)  # it was not stored
            raise
        self._noted(line)
        async with self._changed:
            self._changed.notify_all()

    async def after(self, number: int) -> dict[str, object]:
        """Return the messages after line `number`, waiting up to `WAIT` seconds for new ones."""
        if number >= len(self._lines):
            async with self._changed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(WAIT):
                        await self._changed.wait()
        first = max(number, len(self._lines) - KEPT)
        said = enumerate(self._lines[first:], first)
        last = self._lines[-1]["by"] if self._lines else ""
        return {
            "last": len(self._lines),
            "working": bool(self._open),
            "asking": bool(self._open) and last == "hermes",
            "messages": [_shown(at, line) for at, line in said if line["by"] != "ack"],
        }

    def file(self, line: int, number: int) -> Path:
        """Return a file attached to a line; raise LookupError if it does not exist."""
        return Path(self._lines[line]["files"][number])

    def _load(self) -> None:
        make_private(self._folder)
        token = self._folder / "token"
        if not token.exists():
            write_atomic(token, secrets.token_urlsafe(24).encode(), mode=0o600)
        self.token = token.read_text(encoding="ascii")
        for row in self._file.read_bytes().splitlines() if self._file.exists() else ():
            try:
                line: ChatLine = json.loads(row)
                self._keys.add(f"{line['by']} {line['key']}")
            except (ValueError, KeyError, TypeError):  # cut off by a crash
                continue
            self._noted(line)

    def _noted(self, line: ChatLine) -> None:
        """Add a line in memory; a typed message stays open until it is acknowledged."""
        self._lines.append(line)
        if line["by"] == "you":
            self._open.add(line["key"])
        elif line["by"] == "ack":
            self._open.discard(line["key"])

    def _listen(self) -> None:
        most = self.most_bytes + 1_000_000  # for the text and the multipart boundaries
        port = int(number_in(self._setup.settings, "port", PORT, of="gateway.web"))
        self._server = HTTPServer(Gate(self), max_body_size=most, max_buffer_size=most)
        try:
            sockets = bind_sockets(port, "127.0.0.1")
        except OSError as error:
            raise ConfigError(
                f"gateway.web.port {port} cannot be used: {error.strerror}"
            ) from error
        self._server.add_sockets(sockets)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/?token={self.token}"
        self._setup.tell(f"web: {self.url}")


def _shown(at: int, line: ChatLine) -> dict[str, object]:
    html = html_of(line["text"]) if line["by"] == "hermes" else ""
    files = [
        {
            "name": Path(each).name,
            "at": f"/files/{at}/{number}",
            "picture": mimetypes.guess_type(each)[0] in PICTURES,
        }
        for number, each in enumerate(line["files"])
    ]
    return {"by": line["by"], "text": line["text"], "html": html, "files": files}


class Gate(Router):
    """Admits only requests with the token and a local host name.

    The query string with the token is removed from the request's address before it can be logged.
    """

    def __init__(self, web: WebPage) -> None:
        self._web, given = web, {"web": web}
        self.site = Application(
            [
                (r"/", Page, given),
                (r"/messages", Messages, given),
                (r"/files/(\d+)/(\d+)", Files, given),
            ],
            log_function=lambda _: None,
        )

    def find_handler(self, request: HTTPServerRequest, **_: object) -> HTTPMessageDelegate:
        """Return the handler; reject a wrong host name or token."""
        request.arguments.pop("token", None)
        token = request.query_arguments.pop("token", [b""])[-1]
        request.uri, request.query = request.path, ""
        host = request.host.partition(":")[0]
        if host in ("127.0.0.1", "localhost") and hmac.compare_digest(
            token, self._web.token.encode()
        ):
            return self.site.find_handler(request)
        return self.site.get_handler_delegate(request, Refused, {"web": self._web})


class Handler(RequestHandler):
    """Base class with the headers that all responses share."""

    def initialize(self, web: WebPage) -> None:
        self.web = web

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; sandbox")
        self.clear_header("Server")

    def write_error(self, status_code: int, **_: object) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        told = {
            403: "Use the address that `jupyter hermes gateway` prints.",
            413: "The request is too large.",
        }
        self.finish(told.get(status_code, "Not found."))


class Refused(Handler):
    """Response to a rejected request."""

    def prepare(self) -> None:
        """Reject the request."""
        raise HTTPError(403)


class Page(Handler):
    """Serves the page with the chat."""

    def get(self) -> None:
        """Send the page, with a policy that allows only its own script and style sheet."""
        nonce = secrets.token_urlsafe(12)
        self.set_header(
            "Content-Security-Policy",
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "img-src 'self' data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; "
            "base-uri 'none'",
        )
        page = PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
        self.finish(page.replace("MOST", str(self.web.most_bytes)))


class Messages(Handler):
    """Serves and accepts the chat's messages."""

    async def get(self) -> None:
        """Send new messages."""
        number = self.get_query_argument("after", "0")
        self.finish(await self.web.after(int(number) if number.isdecimal() else 0))

    async def post(self) -> None:
        """Accept a typed message."""
        text = self.get_body_argument("text", "", strip=False)
        files = [
            File(name=each["filename"], data=each["body"])
            for each in self.request.files.get("files", ())
        ]
        if not text.strip() and not files:
            raise HTTPError(400)
        seen = self.get_body_argument("seen", "0")
        await self.web.typed(text, files, int(seen) if seen.isdecimal() else 0)
        self.finish({})


class Files(Handler):
    """Serves the chat's files."""

    def get(self, line: str, number: str) -> None:
        """Send a file; only images get their own content type."""
        try:
            path = self.web.file(int(line), int(number))
            data = path.read_bytes()
        except (LookupError, OSError) as error:
            raise HTTPError(404) from error
        kind = mimetypes.guess_type(path.name)[0] or ""
        self.set_header("Content-Type", kind if kind in PICTURES else "application/octet-stream")
        if kind not in PICTURES:
            self.set_header("Content-Disposition", "attachment")
        self.finish(data)


def adapter(setup: Setup) -> WebPage:
    """Return the adapter."""
    return WebPage(setup)
