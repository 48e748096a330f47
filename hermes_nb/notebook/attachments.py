"""Images attached to a prompt, created from figures, images, arrays and files.

An image is sent with at most `LONGEST` pixels on its longer side and at most `BYTES` of PNG or
JPEG. Providers scale larger images down or refuse them, and charge for them either way. Pillow and
matplotlib are only used if the object comes from them or a file needs them. Arrays are encoded with
numpy alone, so that their bytes are reproducible and match those in a recording.
"""

from __future__ import annotations

import base64
import io
import struct
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.messages import Image
from hermes_nb.core.text import one_line
from hermes_nb.notebook.document.outputs import dimensions
from hermes_nb.notebook.execute.capture import text_of
from hermes_nb.notebook.interpolate import evaluate
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.shell import Foreign, Shell

COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG colour types (specification, 11.2.2) by number of channels: grey, grey and alpha, RGB, RGBA.
"""


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image attached to a message."""

    name: str
    """Its name in the conversation, which is the expression that was evaluated."""
    image: Image
    """The encoded image."""

    @property
    def description(self) -> str:
        """Its name, type and size in pixels."""
        size = dimensions(self.image.mime, self.image.data)
        pixels = f" {size[0]}x{size[1]}" if size else ""
        return f"{self.name} ({self.image.mime}{pixels})"


def shrunk_array(value: Foreign, longest: int) -> Foreign:
    """Return a uint8 array, rows x columns x channels, at most `longest` on its longer side.

    It is reduced by an integer factor; each pixel is the mean of a block. Raises `ConfigError` for
    an array that is not an image.
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
    channels = shape[2:] or (1,)  # grey
    if len(shape) not in (2, 3) or channels[0] not in COLOUR_TYPES:
        message = (
            f"an array of shape {shape} is not an image; use rows x columns (x 3 or 4 channels)"
        )
        raise ConfigError(message)
    if not value.size:
        raise ConfigError(f"an array of shape {shape} has no pixels")
    value = value.reshape(*shape[:2], *channels)
    if value.dtype == numpy.uint8:
        return numpy.ascontiguousarray(value)
    if value.dtype == bool:
        return value.astype("uint8") * 255
    if value.dtype.kind != "f":
        message = (
            f"an array of {value.dtype} is not an image; convert it to uint8, or to floats from "
            "0 to 1"
        )
        raise ConfigError(message)
    known = numpy.nan_to_num(value.astype("float32"), nan=0.0, posinf=numpy.inf, neginf=-numpy.inf)
    if known.min() < 0 or known.max() > 1:
        raise ConfigError(
            f"its values range from {known.min():g} to {known.max():g}; scale them to 0 to 1, for "
            "instance (a - a.min()) / (a.max() - a.min())"
        )
    return numpy.rint(known * 255).astype("uint8")


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


LONGEST = 1_568
"""Maximum pixels on the longer side; Claude scales larger images down, other models charge more."""
BYTES = 1_500_000
"""Maximum bytes of an image: 2 million characters of base64, which every provider accepts."""
MOST = 8
"""Maximum images per turn."""
MOST_FILE = 50_000_000
"""Maximum bytes of an image file."""
SMALLEST = 64
"""Minimum size in pixels; a smaller image is not reduced any further."""
HEADS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""The leading bytes of each file format, and its media type."""


def attachments(expressions: tuple[str, ...], shell: Shell) -> tuple[Attachment, ...]:
    """Return the values of expressions in the user's namespace as images.

    Raises `ConfigError`, and sends nothing, if a value cannot become an image.
    """
    if len(expressions) > MOST:
        message = f"{len(expressions)} images are too many for one turn; send at most {MOST}"
        raise ConfigError(message)
    return tuple(Attachment(one_line(each, 60), attached(each, shell)) for each in expressions)


def attached(expression: str, shell: Shell) -> Image:
    """Return one expression's value as an image; raise `ConfigError` if it cannot become one."""
    value = evaluate(expression, shell, shown=f"--image {one_line(expression, 60)}")
    try:
        with user_code(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fonts and colours, visible in the image
            data = encoded(value)
    except HermesError as error:
        raise ConfigError(f"--image {expression}: {error}. Nothing was sent") from error
    except Exception as error:  # the object's own code may raise anything
        text = one_line(f"{type(error).__name__}: {text_of(error)}", 200)
        message = f"--image {expression} could not be drawn ({text}). Nothing was sent"
        raise ConfigError(message) from error
    return Image(base64.b64encode(data).decode("ascii"), _mime(data) or "image/png")


def encoded(value: Foreign) -> bytes:
    """Encode a value as an image within the limits; raise `ConfigError` if it is not an image."""
    for fits, convert in CONVERTERS:
        if fits(value):
            return convert(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise ConfigError(
        f"{kind} is not an image; give a figure, an image, an array of 2 or 3 dimensions, or the "
        "path of a PNG, JPEG, GIF or WebP file"
    )


def _figure(value: Foreign) -> Foreign:
    """Return the matplotlib figure that a value is or belongs to, or None for anything else."""
    if "matplotlib.figure" not in sys.modules:
        return None
    base: Foreign = sys.modules["matplotlib.figure"].FigureBase
    if _is_array(value) and value.dtype == object and value.size:
        value = value.flat[0]  # plt.subplots returns an array of axes
    if isinstance(value, base):
        return value.get_figure() or value
    try:
        figure = getattr(value, "figure", None)
    except Exception:  # noqa: BLE001 - a third-party property may raise anything
        return None
    return figure if isinstance(figure, base) else None


def _drawn(value: Foreign) -> bytes:
    figure = _figure(value)
    inches = max(*figure.get_size_inches(), 0.1)
    dots = min(float(figure.dpi), LONGEST / inches)
    while True:
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=dots)
        if out.tell() <= BYTES or dots * inches <= SMALLEST:
            return _checked(out.getvalue())
        dots /= 2


def _is_pillow(value: Foreign) -> bool:
    return "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image)


def _saved(value: Foreign) -> bytes:
    """Encode a Pillow image within the limits: as PNG, or as JPEG if PNG is too large."""
    image = value.copy()
    image.thumbnail((LONGEST, LONGEST))
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    image = image.convert("RGBA" if has_alpha else "L" if image.mode in ("1", "L") else "RGB")
    while True:
        for form, options in (("PNG", {"optimize": True}), ("JPEG", {"quality": 85})):
            out = io.BytesIO()
            (image.convert("RGB") if form == "JPEG" else image).save(out, form, **options)
            if out.tell() <= BYTES:
                return out.getvalue()
        image.thumbnail((max(image.size) // 2,) * 2)


def _is_array(value: Foreign) -> bool:
    return "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].ndarray)


def _array(value: Foreign) -> bytes:
    pixels = shrunk_array(value, LONGEST)
    while len(data := array_png(pixels)) > BYTES and max(pixels.shape[:2]) > SMALLEST:
        pixels = shrunk_array(pixels, max(pixels.shape[:2]) // 2)
    return _checked(data)


def _file(value: Foreign) -> bytes:
    path = Path(value).expanduser()
    try:
        if path.stat().st_size > MOST_FILE:
            raise ConfigError(f"{path.name} has more than {MOST_FILE:,} bytes")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{one_line(str(path), 80)!r} cannot be read: {error}") from error
    return _within(data, path.name)


def _within(data: bytes, name: str) -> bytes:
    """Return an image's bytes, reduced if they exceed the limits."""
    mime = _mime(data)
    if not mime:
        raise ConfigError(f"{one_line(name, 80)} is not a PNG, JPEG, GIF or WebP image")
    head = base64.b64encode(data[: 3 * 2**16]).decode("ascii")
    size = dimensions(mime, head)
    if size is not None and max(size) <= LONGEST and len(data) <= BYTES:
        return data
    try:
        import PIL.Image
    except ImportError as error:
        if mime in ("image/gif", "image/webp") and len(data) <= BYTES:
            return data
        message = f"{one_line(name, 80)} is too large; to have it scaled down, `pip install pillow`"
        raise ConfigError(message) from error
    with PIL.Image.open(io.BytesIO(data)) as image:
        still = getattr(image, "n_frames", 1) == 1  # most models refuse animations
        if max(image.size) <= LONGEST and len(data) <= BYTES and still:
            return data
        return _saved(image)


def _shows_itself(value: Foreign) -> bool:
    return any(callable(getattr(type(value), name, None)) for name in ("_repr_png_", "_repr_jpeg_"))


def _shown(value: Foreign) -> bytes:
    for name in ("_repr_png_", "_repr_jpeg_"):
        given = getattr(value, name)() if hasattr(type(value), name) else None
        if isinstance(given, tuple):  # data and metadata
            given = given[0]
        if isinstance(given, str):
            given = base64.b64decode(given)
        if given:
            return _within(bytes(given), type(value).__name__)
    raise ConfigError(f"{type(value).__name__} has no image representation")


def _checked(data: bytes) -> bytes:
    if len(data) > BYTES:
        raise ConfigError(f"it is still {len(data):,} bytes after being scaled down")
    return data


def _mime(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for head, mime in HEADS.items() if data.startswith(head)), "")


CONVERTERS: tuple[tuple[Callable[[Foreign], bool], Callable[[Foreign], bytes]], ...] = (
    (lambda value: isinstance(value, str | Path), _file),
    (lambda value: _figure(value) is not None, _drawn),
    (_is_pillow, _saved),
    (_is_array, _array),
    (_shows_itself, _shown),
)
"""Tests for kinds of values, each with its encoder; the first match is used."""
