"""A page on this machine for trying the gateway: the chat, its files, and nothing else.

It listens on 127.0.0.1 alone, and only to who has the token of the address that it prints. What was
said is kept in a file, by which the page is a service like any other: what was not acknowledged is
delivered again after a kill, and what is sent twice is shown once.
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
"""Seconds that a page waits for what is new before it asks again."""
KEPT = 500
"""Messages that the page shows of what was said before it was opened."""
PICTURES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))


class Line(TypedDict, total=False):
    """A line of the file: what `you` or `hermes` said, with the paths of files, or an `ack`.

    `after` is the key of the last answer that the page showed when the line was typed.
    """

    by: str
    key: str
    text: str
    files: list[str]
    again: bool
    after: str


class WebPage(Adapter):
    """The page, at `port`, which may be 0 for any that is free."""

    name = "web"
    deduplicates = True
    binding = "order"

    def __init__(self, setup: Setup) -> None:
        self._setup, self._folder, self.most_bytes = setup, setup.folder, setup.max_bytes
        self._file = setup.folder / "said.jsonl"
        self._lines: list[Line] = []
        self._keys: set[str] = set()
        self._open: set[str] = set()
        self._arrived: asyncio.Queue[Line] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._server: HTTPServer | None = None
        self.url = ""
        self.token = ""

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """Yield what was not acknowledged, then what is typed."""
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
        """Show an answer, once."""
        files = [str(answer.file)] if answer.file is not None else []
        await self.add(Line(by="hermes", key=answer.key, text=answer.text, files=files))

    async def acknowledge(self, message: Incoming) -> None:
        """Note that a message is answered."""
        await self.add(Line(by="ack", key=message.id, text="", files=[]))

    async def aclose(self) -> None:
        """Close the server."""
        if self._server is not None:
            self._server.stop()
            await self._server.close_all_connections()

    async def typed(self, text: str, files: list[File], seen: int) -> None:
        """Store a message that was typed when so many lines were displayed, and hand it over."""
        key = secrets.token_hex(8)
        above = [line["key"] for line in self._lines[:seen] if line["by"] == "hermes"]
        paths = []
        for number, file in enumerate(files):
            folder = self._folder / "files" / f"{key}-{number}"
            make_private(folder)
            paths.append(folder / (Path(file.name).name or "file"))
            await in_thread(write_atomic, paths[-1], file.data, mode=0o600)
        names, after = [str(path) for path in paths], above[-1] if above else ""
        line = Line(by="you", key=key, text=text, files=names, after=after)
        await self.add(line)
        self._arrived.put_nowait(line)

    async def add(self, line: Line) -> None:
        """Keep a line durably, unless there is one with its key, and show it."""
        key = f"{line['by']} {line['key']}"
        if key in self._keys:
            return
        self._keys.add(key)
        kept = Line(**{**line, "text": redact(line["text"])})
        data = json.dumps(kept).encode() + b"\n"
        try:
            await in_thread(append_line, self._file, data, durable=True)
        except BaseException:
            self._keys.discard(key)  # it is not there
            raise
        self._noted(line)
        async with self._changed:
            self._changed.notify_all()

    async def after(self, number: int) -> dict[str, object]:
        """Return what was said behind a number of lines, as soon as there is something."""
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
        """Return a file that was sent; raise LookupError."""
        return Path(self._lines[line]["files"][number])

    def _load(self) -> None:
        make_private(self._folder)
        token = self._folder / "token"
        if not token.exists():
            write_atomic(token, secrets.token_urlsafe(24).encode(), mode=0o600)
        self.token = token.read_text(encoding="ascii")
        for row in self._file.read_bytes().splitlines() if self._file.exists() else ():
            try:
                line: Line = json.loads(row)
                self._keys.add(f"{line['by']} {line['key']}")
            except (ValueError, KeyError, TypeError):  # cut short by a kill
                continue
            self._noted(line)

    def _noted(self, line: Line) -> None:
        """Count a line in: what was typed is open until it is acknowledged."""
        self._lines.append(line)
        if line["by"] == "you":
            self._open.add(line["key"])
        elif line["by"] == "ack":
            self._open.discard(line["key"])

    def _listen(self) -> None:
        most = self.most_bytes + 1_000_000  # for the text, and what parts the files
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


def _shown(at: int, line: Line) -> dict[str, object]:
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
    """Lets those in who have the token and came by this machine's own address.

    The query, with the token, is cut from the address of a request before anything can log it.
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
        """Return the handler; refuse a foreign name for this machine, and a wrong token."""
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
    """What all answers have in common."""

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
            403: "Take the address that `jupyter hermes gateway` prints.",
            413: "That is too much.",
        }
        self.finish(told.get(status_code, "That is not here."))


class Refused(Handler):
    """The answer to whoever may not use the page."""

    def prepare(self) -> None:
        """Refuse it."""
        raise HTTPError(403)


class Page(Handler):
    """The page itself."""

    def get(self) -> None:
        """Send the page, whose own script and style are all that it may run."""
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
    """What was said."""

    async def get(self) -> None:
        """Send what is new."""
        number = self.get_query_argument("after", "0")
        self.finish(await self.web.after(int(number) if number.isdecimal() else 0))

    async def post(self) -> None:
        """Take what was typed."""
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
    """What was sent along."""

    def get(self, line: str, number: str) -> None:
        """Send a file; only a picture is shown as what it is."""
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
    """Make the adapter."""
    return WebPage(setup)
