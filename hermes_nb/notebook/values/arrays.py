"""Arrays as pictures: checked, made smaller, encoded, with numpy alone.

The bytes depend on the array and on nothing else, so that a recorded turn is found again.
"""

from __future__ import annotations

import struct
import sys
import zlib

from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.values.kinds import Foreign

COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG specification, 11.2.2: grey, grey and alpha, RGB, RGB and alpha, by channels."""


def shrunk_array(value: Foreign, longest: int) -> Foreign:
    """Return an array of bytes, rows x columns x channels, at most `longest` on its longer side.

    It is made smaller by a whole factor, each pixel the mean of those it stands for. Raises
    `ConfigError` for an array that is no picture.
    """
    numpy: Foreign = sys.modules["numpy"]
    pixels = _pixels(value, numpy)
    rows, columns, channels = pixels.shape
    factor = -(-max(rows, columns) // longest)
    if factor <= 1:
        return pixels
    high, wide = -(-rows // factor), -(-columns // factor)
    edges = ((0, high * factor - rows), (0, wide * factor - columns), (0, 0))
    padded = numpy.pad(pixels, edges, mode="edge")
    blocks = padded.reshape(high, factor, wide, factor, channels)
    return numpy.rint(blocks.mean(axis=(1, 3))).astype("uint8")


def array_png(pixels: Foreign) -> bytes:
    """Return an array from `shrunk_array` as the bytes of a PNG file."""
    rows, columns, channels = pixels.shape
    numpy: Foreign = sys.modules["numpy"]
    lines = pixels.reshape(rows, columns * channels)
    filtered = numpy.concatenate([numpy.zeros((rows, 1), "uint8"), lines], axis=1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, COLOUR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 6)
    chunks = ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _pixels(value: Foreign, numpy: Foreign) -> Foreign:
    shape = tuple(value.shape)
    if len(shape) == 2:  # noqa: PLR2004 - grey
        value = value[:, :, None]
    elif len(shape) != 3 or shape[2] not in COLOUR_TYPES:  # noqa: PLR2004
        message = f"an array of shape {shape} is no picture; use rows x columns (x 3 or 4 channels)"
        raise ConfigError(message)
    if not value.size:
        message = f"an array of shape {shape} has no pixels"
        raise ConfigError(message)
    if value.dtype == numpy.uint8:
        return numpy.ascontiguousarray(value)
    if value.dtype == bool:
        return value.astype("uint8") * 255
    if value.dtype.kind != "f":
        message = f"an array of {value.dtype} is no picture; make it uint8, or floats from 0 to 1"
        raise ConfigError(message)
    known = numpy.nan_to_num(value.astype("float32"), nan=0.0, posinf=numpy.inf, neginf=-numpy.inf)
    if known.min() < 0 or known.max() > 1:
        message = (
            f"its values go from {known.min():g} to {known.max():g}; scale them to 0 to 1, "
            "for instance (a - a.min()) / (a.max() - a.min())"
        )
        raise ConfigError(message)
    return numpy.rint(known * 255).astype("uint8")


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
