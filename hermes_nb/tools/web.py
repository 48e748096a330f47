"""The toolset `web`: read a page, search by an endpoint that the user has set. Off by default.

What comes back is text from outside. A page is asked for only where its `robots.txt` lets agents
in, and only at addresses of the public internet: a name is looked up once, every address it stands
for is checked, and the connection goes to the very address that was. Redirects are followed by hand
and checked again; proxies are not used. Time and size are bounded whatever a server sends.
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
"""What servers and their `robots.txt` know us by."""
MOST_BYTES = 5_000_000
MOST_HTML = 1_000_000
"""Bytes of HTML that are converted to Markdown."""
_CONVERT = """
import sys, trafilatura
page, (is_text, url) = sys.stdin.buffer.read(), sys.argv[1:]
page = page.decode() if is_text else page  # without a charset the page itself may name one
text = trafilatura.extract(page, url=url, output_format="markdown", include_links=True)
sys.stdout.buffer.write((text or str(trafilatura.html2txt(page))).encode("utf-8", "replace"))
"""
"""Run in a process of its own: large tables take minutes, and a thread could not be stopped."""
SECONDS = 20.0
"""Of a page with all of its redirects."""
LOOK = 0.02
"""Seconds between two looks for a stop and at the clock."""
REDIRECTS = 5
ROBOTS_BYTES = 512_000
"""RFC 9309 asks for 500 KiB at least."""
ROBOTS_KEPT = 3_600.0
RESULTS = 10
SNIPPET = 400
NEEDS = 'reading pages needs trafilatura: `pip install "hermes_nb[web]"`, then restart the kernel'
REDIRECTED = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came of a request: the address that answered, its status, type and bytes.

    `charset` is "" where the server names none.
    """

    url: str
    status: int
    kind: str
    charset: str
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text."""
        try:
            return self.data.decode(self.charset or "utf-8", "replace")
        except LookupError:  # a charset that nobody knows
            return self.data.decode("utf-8", "replace")


class Web:
    """Reads pages. `private` are hosts (`name` or `name:port`) that may be private addresses."""

    def __init__(self, *, private: Iterable[str] = (), most: int = MOST_BYTES) -> None:
        self._private = frozenset(host.lower() for host in private)
        self._most = most
        self._rules: dict[str, tuple[float, Callable[[str], bool]]] = {}

    def page(
        self, url: str, stop: threading.Event | None = None, *, robots: bool = True
    ) -> Fetched:
        """Return a page, redirects followed; raise `ToolError` where it may not or cannot be had.

        Without `robots`, as for an address that the user has typed, `robots.txt` is not asked.
        Raises `TurnInterrupted` once `stop` is set.
        """
        deadline, stop = time.monotonic() + SECONDS, stop or threading.Event()
        for _ in range(REDIRECTS + 1):
            if robots and not self._welcome(url, deadline, stop):
                raise ToolError(f"robots.txt of {_host(url)} does not want agents at {_shown(url)}")
            found, leads = self._get(url, self._most, deadline, stop)
            if not leads:
                return found
            url = redirected(url, leads)
        raise ToolError(f"{_shown(url)}: more than {REDIRECTS} redirects")

    def asked(self, url: str, stop: threading.Event) -> Fetched:
        """Return what an endpoint answers that the user has set: wherever it is, as it is."""
        found, leads = self._get(url, self._most, time.monotonic() + SECONDS, stop, trusted=True)
        if leads or found.status != http.client.OK:
            raise ToolError(f"{_host(url)} answered with status {found.status}; tell the user")
        return found

    def _welcome(self, url: str, deadline: float, stop: threading.Event) -> bool:
        """Say whether robots.txt lets us in; one that cannot be had for now does not (RFC 9309)."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}".lower()
        made, allows = self._rules.get(origin, (0.0, bool))
        if not made or time.monotonic() - made > ROBOTS_KEPT:
            found, leads = self._get(f"{origin}/robots.txt", ROBOTS_BYTES, deadline, stop)
            if leads:  # one that lies elsewhere is that site's, mostly a page for all that is amiss
                found = Fetched(found.url, http.client.NOT_FOUND, "", "", b"")
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
    ) -> tuple[Fetched, str]:
        """Return what one request gave, and where it leads to, "" for nowhere."""
        connection = self._connection(url, deadline, trusted=trusted)
        parts = urlsplit(url)
        path = urlunsplit(("", "", quote(parts.path or "/", safe="/%:@!$&'()*+,;=~"), "", ""))
        query = f"?{quote(parts.query, safe=_QUERY)}" if parts.query else ""
        headers = {"User-Agent": AGENT, "Accept-Encoding": "identity", "Accept": "*/*"}
        try:
            with _within(connection, deadline, stop):
                connection.request("GET", path + query, headers=headers)
                reply = connection.getresponse()
                leads = reply.headers.get("Location", "") if reply.status in REDIRECTED else ""
                if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise ToolError(f"{_shown(url)} comes packed, though that was not asked for")
                data = b"" if leads else _read(reply, most)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ToolError(f"{_shown(url)} cannot be read: {one_line(str(error), 120)}") from error
        finally:
            connection.close()
        kind, charset = reply.headers.get_content_type(), reply.headers.get_content_charset()
        return Fetched(url, reply.status, kind, charset or "", data), leads

    def _connection(self, url: str, deadline: float, *, trusted: bool) -> _To:
        """Return a connection to an address that was checked; raise `ToolError` for any other."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise ToolError(f"{_shown(url)} is no address") from error
        if not (host and port and host.isascii()) or parts.username is not None:
            raise ToolError(f"{_shown(url)} is no address; give one that begins with https://")
        addresses = _looked_up(host, port)
        known = trusted or not self._private.isdisjoint((host, f"{host}:{port}"))
        if not known and (bad := [each for each in addresses if not is_public(each)]):
            raise ToolError(
                f"{_shown(url)} is at {bad[0]}, which is no address of the public internet, and is "
                "not read. Tell the user, who may allow it for web_fetch by `web.private`"
            )
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        return _To(host, port, addresses, deadline=deadline, secure=secure)


def redirected(url: str, leads: str) -> str:
    """Return the address that a page's `Location` leads to; raise `ToolError` out of https."""
    target = urljoin(url, leads)
    if url.startswith("https:") and not target.startswith("https:"):
        raise ToolError(f"{_shown(url)} leads to {_shown(target)}, which is not encrypted")
    return target


_QUERY = "/?%:@!$&'()*+,;=~-._"


class _To(http.client.HTTPConnection):
    """A connection to the first of some addresses that takes it; encrypted with `secure`."""

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
        self._connection: socket.socket | None = None  # `sock` is gone once a reply begins to close

    def connect(self) -> None:
        *others, last = self._addresses
        for address in others:
            try:
                self.sock = self._connected(address)
                break
            except OSError:  # an IPv6 address where there is no IPv6: the next one may do
                continue
        else:
            self.sock = self._connected(last)
        if self._secure is not None:
            self.sock = secured = self._secure.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self._connection = secured
            secured.do_handshake()  # by now it can be cut off

    def _connected(self, address: str) -> socket.socket:
        found = socket.create_connection((address, self.port), _left(self._deadline))
        self._connection = found
        return found

    def cut_off(self) -> None:
        """End whatever is waited for; called from another thread."""
        with suppress(OSError):  # it has ended by itself
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def _within(connection: _To, deadline: float, stop: threading.Event) -> Iterator[None]:
    """Cut a connection off at a deadline or once `stop` is set, however its server trickles.

    Raises `ToolError` or `TurnInterrupted` then.
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
        _left(deadline)


def is_public(address: str) -> bool:
    """Say whether an IP address is one of the public internet, whatever it is wrapped in."""
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
"""All of IPv6 that is given out as global unicast; what lies outside is local or reserved."""
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("168.63.129.16/32"))
"""Addresses of protocols (IANA), where clouds have their metadata, and Azure's own server."""


def allowance(status: int, text: str) -> Callable[[str], bool]:
    """Return what says whether an address may be read, by the answer to `robots.txt` (RFC 9309)."""
    if status >= http.client.INTERNAL_SERVER_ERROR or status == http.client.TOO_MANY_REQUESTS:
        return lambda _: False
    rules = urllib.robotparser.RobotFileParser()
    rules.parse(text.splitlines() if status == http.client.OK else [])
    return partial(rules.can_fetch, AGENT)


def _looked_up(host: str, port: int) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"there is no host {visible(one_line(host, 80))!r}") from error
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _read(reply: http.client.HTTPResponse, most: int) -> bytes:
    """Return a body of at most so many bytes; raise `ToolError` for a larger one."""
    pieces: list[bytes] = []
    size = 0
    while piece := reply.read1(65_536):
        size += len(piece)
        if size > most:
            raise ToolError(f"it is larger than {most:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _left(deadline: float) -> float:
    """Return the seconds until a deadline; raise `ToolError` where there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise ToolError(f"it took more than {SECONDS:g} s")
    return left


def _host(url: str) -> str:
    return visible(one_line(urlsplit(url).netloc, 80))


def _shown(url: str) -> str:
    return visible(one_line(url, 120))


def as_text(found: Fetched, stop: threading.Event | None = None) -> str:
    """Return a page as Markdown, any other text as it is.

    Raises `ToolError` for what is no text or takes too long, `TurnInterrupted` once `stop` is set.
    """
    if found.status != http.client.OK:
        raise ToolError(f"{_shown(found.url)} answered with status {found.status}")
    if found.kind in ("text/html", "application/xhtml+xml"):
        cut = replace(found, data=found.data[:MOST_HTML])
        text = _markdown(cut, stop or threading.Event())
        return text if cut == found else f"{text}\n\n[cut after {MOST_HTML:,} bytes of HTML]"
    if not found.kind.startswith("text/") and not found.kind.endswith(("json", "xml")):
        raise ToolError(f"{_shown(found.url)} is {found.kind}, no text")
    return found.text


def _markdown(found: Fetched, stop: threading.Event) -> str:
    """Convert HTML in a child process, which ends with a stop or after `SECONDS`."""
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
    """Return search results, as SearXNG gives them in JSON, as text; raise `ToolError`."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise ToolError("the search endpoint's answer is no JSON; tell the user") from error
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list):
        raise ToolError("the search endpoint's answer has no `results`; tell the user")
    lines = []
    for number, each in enumerate((r for r in results if isinstance(r, dict)), start=1):
        title, url, text = (one_line(str(each.get(k) or ""), SNIPPET) for k in _FIELDS)
        lines.append("\n   ".join(filter(None, [f"{number}. {title or url}", url, text])))
    return "\n".join(lines[:count]) or "nothing was found"


_FIELDS = ("title", "url", "content")


def web_tools(web: Web, *, search_url: str = "") -> Toolset:
    """Return the tools; `search_url` is an address with `{query}` in it, "" for no search."""

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
