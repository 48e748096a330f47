"""What an address says about where it leads, without asking anybody."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Say whether a host, as a URL names it, is this machine and no other.

    A name counts if it is `localhost`: `127.evil.example` only looks like a number.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(url: str) -> bool:
    """Say whether a text can be the address of a server at all."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        return known and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # a port that is none, brackets that do not close
        return False
