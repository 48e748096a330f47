"""The toolset `web`: pages of a real server, and every way around its limits that we know."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError, ToolError, TurnInterrupted
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.tools import web
from hermes_nb.tools.web import Web, WebResponse, allowance, as_text, is_public, listed
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import SOON, until

ARTICLE = (
    "<html><head><title>Penguins</title></head><body><nav><a href='/'>Home</a></nav><article>"
    "<h1>Penguins of Dream</h1><p>"
    + "On Dream there are two species, Adelie and Chinstrap. " * 8
    + "</p><p>See <a href='/more'>the data</a>.</p></article></body></html>"
)


class Site:
    """A web site on 127.0.0.1: `pages` map a path to (status, headers, pieces of the body)."""

    def __init__(self):
        self.pages = {}
        self.asked = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                """Say nothing."""

            def do_GET(self):
                site.asked.append((self.path, dict(self.headers)))
                status, headers, pieces = site.pages.get(self.path, (404, {}, [b"no"]))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for piece in pieces:
                        self.wfile.write(piece)
                        self.wfile.flush()
                except OSError:
                    return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.host}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def add(self, path, body=b"", status=200, kind="text/html; charset=utf-8", **headers):
        body = body.encode() if isinstance(body, str) else body
        self.pages[path] = status, {"Content-Type": kind, **headers}, [body]

    @property
    def paths(self):
        return [path for path, _ in self.asked]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def site():
    with Site() as site:
        yield site


@pytest.fixture
def reader(site):
    return Web(private=[site.host])


def configured(home, site, *, search=False):
    home.mkdir(mode=0o700)
    found = f"    search_url: {site.url}/search?q={{query}}&format=json\n" if search else ""
    text = f"hermes_nb:\n  web:\n    private: ['{site.host}']\n{found}"
    (home / "config.yaml").write_text(text, encoding="utf-8")


def test_a_page_is_read_as_text_from_outside(home, tmp_path, site):
    pytest.importorskip("trafilatura")
    configured(home, site)
    site.add("/penguins", ARTICLE)
    fetch = call("web_fetch", url=f"{site.url}/penguins")
    model = ScriptedModel([fetch, "Two species.", call("terminal", command="curl x"), "Refused."])
    with Hermes(model, cwd=tmp_path, tools=["web", "terminal"], approve="all") as hermes:
        assert hermes.ask("Which species?").text == "Two species."
        read = model.requests[1].messages[-1]
        hermes.ask("Send it somewhere.")
    assert read.origin == "outside" and "untrusted" in read.text
    assert "Adelie and Chinstrap" in read.text and "Home" not in read.text
    assert f"[the data]({site.url}/more)" in read.text
    assert site.asked[1][1]["User-Agent"] == "hermes_nb"
    assert "was not run" in model.requests[-1].messages[-1].text, "approve='all' or not"


def test_a_stop_ends_the_conversion_of_a_page_that_takes_long(site):
    pytest.importorskip("trafilatura")
    cells = "".join(f"<td>cell {n}<table><tr><td>x</td></tr></table></td>" for n in range(20_000))
    page = f"<html><body><table><tr>{cells}</tr></table></body></html>".encode()
    found = WebResponse(site.url, 200, "text/html", "", page)
    stop, ended = threading.Event(), []

    def convert():
        with pytest.raises(TurnInterrupted):
            as_text(found, stop)
        ended.append(True)

    thread = threading.Thread(target=convert)
    thread.start()
    assert until(children), "the page is converted in a process of its own"
    stop.set()
    thread.join(30)
    assert ended and not children()


def children():
    return [
        each for each in psutil.Process().children() if "trafilatura" in " ".join(each.cmdline())
    ]


def test_reading_asks_first_and_is_not_offered_unless_it_is_named(home, tmp_path, site):
    configured(home, site)
    model = ScriptedModel([call("web_fetch", url=f"{site.url}/x"), "No."])
    with Hermes(model, cwd=tmp_path, tools=["web"]) as hermes:
        hermes.ask("go")
    assert site.asked == [], "nobody said yes"
    assert "was not run" in model.requests[-1].messages[-1].text
    with pytest.raises(ConfigError, match="no tool or toolset 'web_search'"):
        Hermes(model, cwd=tmp_path, tools=["web_search"]).ask("go")


def test_a_search_goes_to_the_endpoint_that_is_set(home, tmp_path, site):
    configured(home, site, search=True)
    results = [{"title": "Penguins", "url": "https://a.example/p", "content": "Two species."}] * 9
    site.add("/search?q=two%20%26%20more&format=json", json.dumps({"results": results}))
    model = ScriptedModel([call("web_search", query="two & more", count=2), "Found."])
    with Hermes(model, cwd=tmp_path, tools=["web"], approve="all") as hermes:
        hermes.ask("go")
    found = model.requests[-1].messages[-1]
    assert "1. Penguins\n   https://a.example/p\n   Two species." in found.text
    assert "3. Penguins" not in found.text and found.origin == "outside"


PRIVATE = ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"]
WRAPPED = ["::1", "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"]
TUNNELS = ["2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "ff02::1", "224.0.0.1", "x"]
RESERVED = ["168.63.129.16", "192.0.0.192", "192.0.0.8", "64:ff9b:1::7f00:1", "64:ff9b:1::1"]
RESERVED += ["::7f00:1", "fec0::1", "100::1", "2002:a83f:8110::", "64:ff9b::c000:c0", "5f00::1"]


@pytest.mark.parametrize("address", [*PRIVATE, *WRAPPED, *TUNNELS, *RESERVED])
def test_no_private_address_passes_for_a_public_one(address):
    assert not is_public(address)


def test_public_addresses_are_public():
    assert all(map(is_public, ["1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101"]))


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_as_what_it_wraps(address):
    assert is_public(f"::ffff:{address}") == is_public(str(address))
    number = int(address)
    nat = ipaddress.IPv6Address((0x64_FF9B << 96) | number)
    assert is_public(str(nat)) == is_public(str(address))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0"]
)
def test_this_machine_is_not_reached_under_any_name(site, host):
    port = site.server.server_address[1]
    with pytest.raises(ToolError, match=r"not a public internet address|was not found"):
        Web().page(f"http://{host}:{port}/secret")
    assert site.asked == []


def test_a_name_that_is_private_too_is_not_read(site, monkeypatch):
    port = site.server.server_address[1]
    looked = []

    def lookup(host, port, **_):
        looked.append(host)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("1.1.1.1", port)), (*kind, ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(ToolError, match="is at 127"):
        Web().page(f"http://rebinding.example:{port}/")
    assert site.asked == []


def test_the_connection_goes_to_the_address_that_was_checked(site, monkeypatch):
    """A name that changes between check and use (DNS rebinding) leads nowhere else."""
    port = site.server.server_address[1]
    site.add("/", "fine", kind="text/plain")
    real, asked = socket.getaddrinfo, []

    def lookup(host, *rest, **more):
        asked.append(host)
        return real("127.0.0.1" if host == "site.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    found = Web(private=["site.example"]).page(f"http://site.example:{port}/")
    assert found.text == "fine"
    assert dict(site.asked[-1][1])["Host"] == f"site.example:{port}"
    assert asked.count("site.example") == 2, "once for robots.txt, once for the page"


def test_redirects_are_followed_and_checked(site, reader):
    site.add("/a", status=302, Location="/b")
    site.add("/b", "there", kind="text/plain")
    assert reader.page(f"{site.url}/a").text == "there"
    site.add("/out", status=307, Location="http://169.254.169.254/latest/meta-data")
    with pytest.raises(ToolError, match=r"is at 169\.254\.169\.254"):
        reader.page(f"{site.url}/out")
    site.add("/file", status=302, Location="file:///etc/passwd")
    with pytest.raises(ToolError, match="is not a URL"):
        reader.page(f"{site.url}/file")
    site.add("/loop", status=301, Location="/loop")
    with pytest.raises(ToolError, match="more than 5 redirects"):
        reader.page(f"{site.url}/loop")


def test_robots_txt_is_heeded_and_read_once(site, reader):
    site.add("/robots.txt", "User-agent: *\nDisallow: /private\n", kind="text/plain")
    site.add("/open", "fine", kind="text/plain")
    site.add("/to", status=302, Location="/private/x")
    assert reader.page(f"{site.url}/open").text == "fine"
    for path in ("/private/x", "/to"):
        with pytest.raises(ToolError, match="does not allow agents"):
            reader.page(f"{site.url}{path}")
    assert site.paths.count("/robots.txt") == 1
    assert "/private/x" not in site.paths


def test_a_robots_txt_that_cannot_be_had_keeps_us_out(site, reader):
    site.add("/robots.txt", "busy", status=503)
    with pytest.raises(ToolError, match="does not allow agents"):
        reader.page(f"{site.url}/open")


@given(st.integers(200, 599), st.text())
def test_any_robots_txt_is_read(status, text):
    assert allowance(status, text)("https://a.example/x") in (True, False)


def test_size_time_and_kind_are_bounded(site, reader, monkeypatch):
    site.pages["/long"] = 200, {"Content-Type": "text/plain"}, [b"x" * 100_000] * 60
    with pytest.raises(ToolError, match="larger than 5,000,000 bytes"):
        reader.page(f"{site.url}/long")
    site.add("/packed", b"\x1f\x8b", **{"Content-Encoding": "gzip"})
    with pytest.raises(ToolError, match="was sent compressed"):
        reader.page(f"{site.url}/packed")
    site.add("/movie", b"\0", kind="video/mp4")
    with pytest.raises(ToolError, match="is video/mp4, not text"):
        web.as_text(reader.page(f"{site.url}/movie"))
    with pytest.raises(ToolError, match="status 404"):
        web.as_text(reader.page(f"{site.url}/nowhere"))

    def trickle():
        while True:
            yield b"x"
            time.sleep(0.02)

    monkeypatch.setattr(web, "SECONDS", 0.4)
    site.pages["/slow"] = 200, {"Content-Type": "text/plain"}, trickle()
    began = time.monotonic()
    with pytest.raises(ToolError, match=r"took longer than 0\.4 s"):
        reader.page(f"{site.url}/slow")
    assert time.monotonic() - began < SOON  # it trickles for ever


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"x"),
        (CHUNKED, b"0"),
        (CHUNKED + b"0\r\n", b"x: y\r\n"),
    ],
    ids=["interim answers", "a header", "the size of a chunk", "trailers"],
)
def test_a_server_that_trickles_before_or_behind_the_body_is_left(monkeypatch, first, again):
    monkeypatch.setattr(web, "SECONDS", 0.4)
    over = threading.Event()

    def serve(listening):
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(first)
            while not over.wait(0.02):  # until the reader is gone
                connection.sendall(again)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        try:
            with pytest.raises(ToolError, match=r"took longer than 0\.4 s|got more than"):
                Web(private=["127.0.0.1"]).page(address, robots=False)
        finally:
            over.set()


def test_a_stop_ends_the_reading(site, reader):
    stop = threading.Event()

    def endless():
        yield b"x"
        stop.set()
        while True:
            yield b"x"
            time.sleep(0.01)

    site.pages["/endless"] = 200, {"Content-Type": "text/plain"}, endless()
    with pytest.raises(TurnInterrupted):
        reader.page(f"{site.url}/endless", stop)


def test_of_a_very_long_page_the_beginning_is_read():
    page = b"<html><body><article>" + b"<p>Adelie and Chinstrap, at length.</p>" * 30_000
    text = as_text(
        WebResponse("https://a.example/", 200, "text/html", "utf-8", page + b"<p>Gentoo")
    )
    assert "Adelie" in text and "Gentoo" not in text
    assert text.endswith("[truncated after 1,000,000 bytes of HTML]")


@pytest.mark.parametrize(
    "address", ["ftp://a.example/", "https://", "http://u:p@a.example/", "http://a:b/", "x"]
)
def test_what_is_no_address_is_said(address):
    with pytest.raises(ToolError, match="is not a URL"):
        Web().page(address)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["results", "title", "url", "content"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(_JSON, st.integers(1, 10))
def test_any_answer_of_a_search_is_listed_or_said_to_be_none(answer, count):
    try:
        shown = listed(json.dumps(answer), count)
    except ToolError:
        return
    assert shown.count("\n") <= 3 * count


def test_search_addresses_are_checked_when_they_are_read(home):
    from hermes_nb.agent.settings.config import load_settings

    with pytest.raises(ConfigError, match=r"contains \{query\}"):
        load_settings(overrides={"web.search_url": "https://a.example/search"})
