"""What an address says by itself: whether it is one, and whether it leads off this machine."""

from __future__ import annotations

import pytest
from hermes_nb.models.profiles import is_address, is_loopback


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *(("localhost", True), ("LOCALHOST", True), ("127.0.0.1", True), ("127.9.9.9", True)),
        *(("::1", True), ("127.evil.example", False), ("localhost.evil.example", False)),
        *(("10.0.0.1", False), ("", False)),
    ],
)
def test_this_machine_is_told_from_what_only_looks_like_it(host, here):
    assert is_loopback(host) is here


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", "https://x.example/v1", "http://[::1]:1/v1"]
)
def test_addresses(url):
    assert is_address(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "127.0.0.1:8080", "http://", "http://[oops/v1", "http://h:99999/", "ftp://h/"),
        "http://a b/",
    ],
)
def test_what_is_no_address(url):
    assert not is_address(url)
