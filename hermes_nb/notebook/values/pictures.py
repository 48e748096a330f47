"""A picture's size from its first bytes, and whether a model can be given it."""

from __future__ import annotations

import base64
import binascii
import re
import struct

from hermes_nb.core.messages import Image

SIZE_LIMIT = 2_000_000
"""Characters of base64: a bigger picture costs more than it tells, and some providers refuse it."""

_JPEG_HEAD = 65_536
_SPACE = re.compile(r"\s+")


def picture(mime: str, data: str, *, wanted: bool = True) -> tuple[str, Image | None]:
    """Return a note such as `[image/png 640x480]`, and the picture unless it cannot be shown."""
    data = _SPACE.sub("", data)
    size = dimensions(mime, data)
    if size is None:
        return f"[{mime}, unreadable]", None
    note = f"{mime} {size[0]}x{size[1]}"
    if not wanted:
        return f"[{note}, not shown]", None
    if len(data) > SIZE_LIMIT:
        return f"[{note}, too large to show: {len(data) * 3 // 4:,} bytes]", None
    return f"[{note}]", Image(data, mime)


def dimensions(mime: str, data: str) -> tuple[int, int] | None:
    """Return width and height in pixels of a base64-encoded PNG or JPEG, None if it is neither."""
    try:
        head = base64.b64decode(data[: _JPEG_HEAD * 4 // 3 // 4 * 4], validate=True)
        return _png(head) if mime == "image/png" else _jpeg(head)
    except (binascii.Error, ValueError, struct.error, IndexError):
        return None


def _png(head: bytes) -> tuple[int, int] | None:
    """PNG specification, 11.2.2: the header chunk comes first."""
    if head[:8] != b"\x89PNG\r\n\x1a\n" or head[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """ITU T.81, B.1.1: walk the segments to the first frame header."""
    if head[:2] != b"\xff\xd8":
        return None
    at = 2
    while head[at] == 0xFF:  # noqa: PLR2004
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # noqa: PLR2004
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", head[at + 2 : at + 4])[0]
    return None
