"""The toolset `web`: read pages, and search with the configured endpoint. Off by default.

All results are untrusted content. A page is fetched only if its `robots.txt` permits agents, and
only from the public internet: a name is resolved once, all its addresses are checked, and the
connection uses one of them. Each redirect is checked in the same way. Proxies are not used. Time
and size are limited.
"""

from __future__ import annotations

import http.client
import importlib.util
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.robotparser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.tools.schema import tool

AGENT = "hermes_nb"
"""The user agent, also for `robots.txt`."""
MOST_BYTES = 5_000_000
MOST_HTML = 1_000_000
"""Maximum bytes of HTML to convert to Markdown; the rest is dropped."""
_CONVERT = """
import sys, trafilatura
page, (is_text, url) = sys.stdin.buffer.read(), sys.argv[1:]
page = page.decode() if is_text else page  # without a charset the page itself may name one
text = trafilatura.extract(page, url=url, output_format="markdown", include_links=True)
sys.stdout.buffer.write((text or str(trafilatura.html2txt(page))).encode("utf-8", "replace"))
"""
"""Runs in a separate process: large tables take minutes, and a thread cannot be stopped."""
SECONDS = 20.0
"""Limit in seconds for a page, including all redirects."""
LOOK = 0.02
"""Seconds between checks for an interrupt or the deadline."""
REDIRECTS = 5
ROBOTS_BYTES = 512_000
"""Maximum size in bytes; RFC 9309 requires at least 500 KiB."""
ROBOTS_KEPT = 3_600.0
RESULTS = 10
SNIPPET = 400
NEEDS = 'reading pages needs trafilatura: `pip install "hermes_nb[web]"`, then restart the kernel'
REDIRECTED = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WebResponse:
    """The response to a request."""

    url: str
    """The URL that answered, after redirects."""
    status: int
    """The HTTP status code."""
    kind: str
    """The media type, such as `text/html`."""
    charset: str
    """The character set; empty if the server does not specify one."""
    data: bytes
    """The body."""

    @property
    def text(self) -> str:
        """The body as text."""
        try:
            return self.data.decode(self.charset or "utf-8", "replace")
        except LookupError:  # an unknown charset
            return self.data.decode("utf-8", "replace")


class Web:
    """Fetches pages. Hosts may have private addresses only if `private` lists `name[:port]`."""

    def __init__(self, *, private: Iterable[str] = (), most: int = MOST_BYTES) -> None:
        self._private = frozenset(host.lower() for host in private)
        self._most = most
        self._rules: dict[str, tuple[float, Callable[[str], bool]]] = {}

    def page(
        self, url: str, stop: threading.Event | None = None, *, robots: bool = True
    ) -> WebResponse:
        """Fetch a page and follow its redirects.

        Without `robots`, used for URLs typed by the user, `robots.txt` is not checked.

        Raises:
            ToolError: the page is not permitted or cannot be fetched.
            TurnInterrupted: `stop` was set.
        """
        deadline, stop = time.monotonic() + SECONDS, stop or threading.Event()
        for _ in range(REDIRECTS + 1):
            if robots and not self._welcome(url, deadline, stop):
                raise ToolError(
                    f"robots.txt of {_host(url)} does not allow agents at {_shown(url)}"
                )
            found, leads = self._get(url, self._most, deadline, stop)
            if not leads:
                return found
            url = redirected(url, leads)
        raise ToolError(f"{_shown(url)}: more than {REDIRECTS} redirects")

    def asked(self, url: str, stop: threading.Event) -> WebResponse:
        """Fetch a URL from the user's settings: any address is allowed, but not redirects."""
        found, leads = self._get(url, self._most, time.monotonic() + SECONDS, stop, trusted=True)
        if leads or found.status != http.client.OK:
            raise ToolError(f"{_host(url)} responded with status {found.status}; tell the user")
        return found

    def _welcome(self, url: str, deadline: float, stop: threading.Event) -> bool:
        """Return whether robots.txt permits the URL; False if unreachable for now (RFC 9309)."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}".lower()
        made, allows = self._rules.get(origin, (0.0, bool))
        if not made or time.monotonic() - made > ROBOTS_KEPT:
            found, leads = self._get(f"{origin}/robots.txt", ROBOTS_BYTES, deadline, stop)
            if leads:  # a redirect usually leads to an error page: treat the file as missing
                found = WebResponse(found.url, http.client.NOT_FOUND, "", "", b"")
            allows = allowance(found.status, found.text if found.data else "")
            self._rules[origin] = time.monotonic(), allows
        return allows(url)

    def _get(
        self,
        url: str,
        most: int,
        deadline: float,
        stop: threading.Event,
        *,
        trusted: bool = False,
    ) -> tuple[WebResponse, str]:
        """Send one request; return the response and the target of its redirect, or ""."""
        connection = self._connection(url, deadline, trusted=trusted)
        parts = urlsplit(url)
        path = urlunsplit(("", "", quote(parts.path or "/", safe="/%:@!$&'()*+,;=~"), "", ""))
        query = f"?{quote(parts.query, safe=_QUERY)}" if parts.query else ""
        headers = {"User-Agent": AGENT, "Accept-Encoding": "identity", "Accept": "*/*"}
        try:
            with _abort_after(connection, deadline, stop):
                connection.request("GET", path + query, headers=headers)
                reply = connection.getresponse()
                leads = reply.headers.get("Location", "") if reply.status in REDIRECTED else ""
                if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise ToolError(f"{_shown(url)} was sent compressed, which was not requested")
                data = b"" if leads else _read(reply, most)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ToolError(f"{_shown(url)} cannot be read: {one_line(str(error), 120)}") from error
        finally:
            connection.close()
        kind, charset = reply.headers.get_content_type(), reply.headers.get_content_charset()
        return WebResponse(url, reply.status, kind, charset or "", data), leads

    def _connection(self, url: str, deadline: float, *, trusted: bool) -> _To:
        """Return a connection to a checked address; raise `ToolError` if it is not permitted."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise ToolError(f"{_shown(url)} is not a URL") from error
        if not (host and port and host.isascii()) or parts.username is not None:
            raise ToolError(f"{_shown(url)} is not a URL; give one that begins with https://")
        addresses = _looked_up(host, port)
        known = trusted or not self._private.isdisjoint((host, f"{host}:{port}"))
        if not known and (bad := [each for each in addresses if not is_public(each)]):
            raise ToolError(
                f"{_shown(url)} is at {bad[0]}, which is not a public internet address, so it was "
                "not read. Tell the user, who can allow it for web_fetch with the setting "
                "`web.private`"
            )
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        return _To(host, port, addresses, deadline=deadline, secure=secure)


def redirected(url: str, leads: str) -> str:
    """Return the target of a redirect; raise `ToolError` if it leaves https."""
    target = urljoin(url, leads)
    if url.startswith("https:") and not target.startswith("https:"):
        raise ToolError(f"{_shown(url)} leads to {_shown(target)}, which is not encrypted")
    return target


_QUERY = "/?%:@!$&'()*+,;=~-._"


class _To(http.client.HTTPConnection):
    """A connection to the first address that accepts it, encrypted if `secure` is given."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[str],
        *,
        deadline: float,
        secure: ssl.SSLContext | None,
    ) -> None:
        super().__init__(host, port)
        self.default_port = _PORTS["https" if secure else "http"]
        self._addresses = addresses
        self._deadline = deadline
        self._secure = secure
        self._connection: socket.socket | None = None  # `sock` is None once a reply is closing

    def connect(self) -> None:
        *others, last = self._addresses
        for address in others:
            try:
                self.sock = self._connected(address)
                break
            except OSError:  # for example IPv6 without a route: try the next one
                continue
        else:
            self.sock = self._connected(last)
        if self._secure is not None:
            self.sock = secured = self._secure.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self._connection = secured
            secured.do_handshake()  # only now, so that it can be interrupted

    def _connected(self, address: str) -> socket.socket:
        found = socket.create_connection((address, self.port), _seconds_left(self._deadline))
        self._connection = found
        return found

    def cut_off(self) -> None:
        """Abort the pending operation; called in another thread."""
        with suppress(OSError):  # already closed
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def _abort_after(connection: _To, deadline: float, stop: threading.Event) -> Iterator[None]:
    """Abort a connection at the deadline or once `stop` is set, even if the server is slow.

    Raises `ToolError` or `TurnInterrupted` in that case.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            if stop.is_set() or time.monotonic() >= deadline:
                connection.cut_off()

    watching = threading.Thread(target=watch, name="hermes-web", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        if stop.is_set():
            raise TurnInterrupted("stopped while a page was read")
        _seconds_left(deadline)


def is_public(address: str) -> bool:
    """Return whether an IP address is public, including IPv4 addresses embedded in IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if inner:
            found = inner
        elif found in _NAT64:
            found = ipaddress.IPv4Address(found.packed[-4:])
        elif found not in _UNICAST:
            return False
    special = isinstance(found, ipaddress.IPv4Address) and any(found in each for each in _SPECIAL)
    return found.is_global and not found.is_multicast and not special


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The IPv6 range for global unicast; other addresses are local or reserved."""
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("168.63.129.16/32"))
"""IANA protocol addresses, used by clouds for metadata, and Azure's platform address."""


def allowance(status: int, text: str) -> Callable[[str], bool]:
    """Return a function that tests whether a URL may be read.

    `status` and `text` are the response to the request for `robots.txt` (RFC 9309).
    """
    if status >= http.client.INTERNAL_SERVER_ERROR or status == http.client.TOO_MANY_REQUESTS:
        return lambda _: False
    rules = urllib.robotparser.RobotFileParser()
    rules.parse(text.splitlines() if status == http.client.OK else [])
    return partial(rules.can_fetch, AGENT)


def _looked_up(host: str, port: int) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"the host {visible(one_line(host, 80))!r} was not found") from error
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _read(reply: http.client.HTTPResponse, most: int) -> bytes:
    """Return a body of at most `most` bytes; raise `ToolError` if it is larger."""
    pieces: list[bytes] = []
    size = 0
    while piece := reply.read1(65_536):
        size += len(piece)
        if size > most:
            raise ToolError(f"it is larger than {most:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _seconds_left(deadline: float) -> float:
    """Return the seconds until the deadline; raise `ToolError` if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise ToolError(f"it took longer than {SECONDS:g} s")
    return left


def _host(url: str) -> str:
    return visible(one_line(urlsplit(url).netloc, 80))


def _shown(url: str) -> str:
    return visible(one_line(url, 120))


def as_text(found: WebResponse, stop: threading.Event | None = None) -> str:
    """Return a page as Markdown, or other text unchanged.

    Raises `ToolError` if it is not text or takes too long, and `TurnInterrupted` once `stop` is
    set.
    """
    if found.status != http.client.OK:
        raise ToolError(f"{_shown(found.url)} responded with status {found.status}")
    if found.kind in ("text/html", "application/xhtml+xml"):
        cut = replace(found, data=found.data[:MOST_HTML])
        text = _markdown(cut, stop or threading.Event())
        return text if cut == found else f"{text}\n\n[truncated after {MOST_HTML:,} bytes of HTML]"
    if not found.kind.startswith("text/") and not found.kind.endswith(("json", "xml")):
        raise ToolError(f"{_shown(found.url)} is {found.kind}, not text")
    return found.text


def _markdown(found: WebResponse, stop: threading.Event) -> str:
    """Convert HTML in a child process, which is killed on an interrupt or after `SECONDS`."""
    command = [sys.executable, "-P", "-c", _CONVERT, found.charset and "text", found.url]
    data = found.text.encode("utf-8", "replace") if found.charset else found.data
    with tempfile.TemporaryFile() as page, tempfile.TemporaryFile() as text:
        page.write(data)
        page.seek(0)
        child = subprocess.Popen(
            command, stdin=page, stdout=text, stderr=subprocess.DEVNULL, env=child_environment()
        )
        deadline = time.monotonic() + SECONDS
        try:
            while child.poll() is None and time.monotonic() < deadline and not stop.wait(LOOK):
                pass
        finally:
            child.kill()
            child.wait()
        if stop.is_set():
            raise TurnInterrupted("stopped while a page was converted to Markdown")
        if child.returncode:
            raise ToolError(f"the HTML of {_shown(found.url)} cannot be converted to Markdown")
        text.seek(0)
        return text.read().decode("utf-8")


def listed(answer: str, count: int) -> str:
    """Render search results in the JSON format of SearXNG as text; raise `ToolError`."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise ToolError("the search endpoint did not return JSON; tell the user") from error
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list):
        raise ToolError("the search endpoint's response has no `results`; tell the user")
    lines = []
    for number, each in enumerate((r for r in results if isinstance(r, dict)), start=1):
        title, url, text = (one_line(str(each.get(k) or ""), SNIPPET) for k in _FIELDS)
        lines.append("\n   ".join(filter(None, [f"{number}. {title or url}", url, text])))
    return "\n".join(lines[:count]) or "nothing was found"


_FIELDS = ("title", "url", "content")


def web_tools(web: Web, *, search_url: str = "") -> Toolset:
    """Return the tools; `search_url` is a URL with `{query}` in it, or "" for no search."""

    def without() -> str:
        return "" if importlib.util.find_spec("trafilatura") else NEEDS

    @tool(
        toolset="web", risk=Risk.NETWORK, available=without, origin=_from_page, describe=_from_page
    )
    def web_fetch(context: ToolContext, url: str) -> ToolOutput:
        """Read a web page, or any text at an address, as Markdown."""
        text = as_text(web.page(url, context.stop), context.stop)
        return ToolOutput(text or "(the page has no text)", origin="outside")

    @tool(toolset="web", risk=Risk.NETWORK, origin=_from_search)
    def web_search(context: ToolContext, query: str, count: int = 5) -> ToolOutput:
        """Search the web; gives titles, addresses and a few words of each."""
        asked = search_url.replace("{query}", quote(query, safe=""))
        found = web.asked(asked, context.stop)
        return ToolOutput(listed(found.text, max(1, min(count, RESULTS))), origin="outside")

    tools: list[Tool] = [web_fetch, *([web_search] if search_url else [])]
    return Toolset(tools)


def _from_page(arguments: Mapping[str, Json]) -> str:
    return one_line(str(arguments.get("url", "")), 120)


def _from_search(_: Mapping[str, Json]) -> str:
    return "a web search"
