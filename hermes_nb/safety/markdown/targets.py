"""Where links and pictures of a text lead: what may be followed, and what loads by itself.

A link is followed by hand, so any address of the web will do; a scheme that executes will not. A
picture is loaded as soon as it is shown, which tells its server who reads: only the notebook's own
folder and its attachments will do.
"""

from __future__ import annotations

import html
import re
from urllib.parse import quote, urlsplit

SAFE_SCHEMES = frozenset({"http", "https", "mailto", "attachment"})
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_PLAIN = "/:?#@&'*+,;=%-._~"
"""What an address may hold as it stands; other ASCII signs could end it or begin markup."""


def link_target(written: str) -> str:
    """Return the address of a link for use in Markdown, `#` where following it would execute.

    `written` is what stands there in Markdown, entities and backslashes included.
    """
    address = _decoded(written)
    scheme, colon, _ = address.partition(":")
    leads_on = not colon or any(sign in scheme for sign in "/#?")
    if not leads_on and scheme.lower() not in SAFE_SCHEMES:
        return "#"
    ordinary = not re.search(r"[<>\"'\\$&\s]", written) and address.isascii()
    return written if ordinary else _quoted(address)


def is_local(written: str) -> bool:
    """Say whether a picture lies beside the notebook or in it, so that loading it tells nobody."""
    address = _decoded(written).replace("\\", "/")
    if address.lower().startswith("attachment:"):
        return True
    return bool(address) and ":" not in address and address[0] not in "/#?"


def _decoded(written: str) -> str:
    """Return an address as a browser would take it, however it is disguised."""
    plain = html.unescape(html.unescape(written))
    bare = re.sub(r"\\(?=[!-/:-@\[-`{-~])", "", plain)
    return _INVISIBLE.sub("", bare)


def _quoted(address: str) -> str:
    """Return an address in ASCII: a host that looks like another one shows what it is."""
    try:
        host = urlsplit(address).hostname or ""
        if not host.isascii():
            address = address.replace(host, host.encode("idna").decode(), 1)
    except (ValueError, UnicodeError):  # no host that anything could connect to
        return "#"
    return quote(address, safe=_PLAIN)
