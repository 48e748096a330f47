"""Render a cell's outputs for the model: nbformat outputs to text and images.

All functions are linear in the size of their input. They accept any text, including lone
surrogates, NUL and incomplete escape sequences.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

from hermes_nb.core.messages import Image, Json
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import ToolOutput

LIMIT = 16_000
"""Maximum characters of text from one cell's outputs: about 4,500 tokens."""
IMAGES = 4
"""Maximum number of images from one cell's outputs."""

SIZE_LIMIT = 2_000_000
"""Maximum characters of an image in base64; larger ones cost too much, and providers refuse
some."""

_MIN_REPEATS = 3
_CONTEXT_FRAMES = 3
_FRAME_LIMIT = 2_000
_TRACEBACK_LIMIT = 200_000
_HTML_LIMIT = 400_000
_JPEG_HEAD = 65_536
_NAME_ALONE = 500
"""Text of at least this many characters is not just an object's name."""
_MARKER = 0xFF
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The bytes that, after a marker byte, start a frame header in a JPEG file."""

_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\x1b\][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)"  # links and titles
    r"|\x1b[@-_]?"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_FRAME = re.compile(r"^[ \t]*(?:Cell |Input |File )\S", re.MULTILINE)
LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\][Ll]ib[/\\]python\d|<frozen|<__array_"
    r"|^(?:File \"?)?[\w.-]+[/\\][^\n\":]*\.p(?:yx|xi)\b"  # sources of Cython modules
)
"""Matches the first line of a traceback frame, or its file, if the frame is in a library."""
_CONTEXT = re.compile(r"[ \t]+\d+(?:[ \t]|$)|-+> ?\d+ 'Could not get source")
"""Matches a line of source context in IPython's tracebacks, or the note that it is missing."""
_BLANK = re.compile(r"\s+")
_PLACEHOLDER = re.compile(r"<[\w.]+(?: [^\n]*)?>\s*")

_TEXTS = ("text/markdown", "text/plain", "text/latex", "text/html", "application/json")
_PICTURES = ("image/png", "image/jpeg")

_SILENT = frozenset({"script", "style", "head", "template", "svg", "noscript", "title", "textarea"})
_LINES = frozenset(
    "p div br li tr table ul ol pre section article h1 h2 h3 h4 h5 h6 blockquote hr dt dd caption"
    " thead tbody".split()
)
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]{0,40})")

_CLOSERS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in _SILENT}


def render(
    outputs: Iterable[Mapping[str, Json]], *, limit: int = LIMIT, images: int = IMAGES
) -> ToolOutput:
    """Render outputs as at most about `limit` characters of text and at most `images` images.

    With `images=0`, for a model that cannot read images, each image is only a note in the text.
    """
    texts: list[str] = []
    pictures: list[Image] = []
    for output in _joined(outputs):
        text, picture_ = _output_text(output, room=images - len(pictures))
        if picture_ is not None:
            pictures.append(picture_)
        if text:
            texts.append(text)
    share = limit if len(texts) == 1 else max(limit // 2, limit // max(len(texts), 1))
    text = "\n".join(head_tail(each, share) for each in texts)
    return ToolOutput(head_tail(text, limit), tuple(pictures))


def clean(text: str) -> str:
    """Clean terminal output: apply overwrites, strip escape codes, count repeated lines."""
    return count_repeats(settle_lines(strip_ansi(text)))


def strip_ansi(text: str) -> str:
    """Return text without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def settle_lines(text: str) -> str:
    r"""Return text after applying its carriage returns and backspaces.

    Only the final state of a progress bar remains. Other control characters are removed, lone
    surrogates replaced; tabs and newlines are kept.
    """
    text = text.replace("\r\n", "\n")
    if "\r" in text or "\b" in text:
        text = "\n".join(_settle(line) for line in text.split("\n"))
    return _SURROGATES.sub("\ufffd", _CONTROL.sub("", text))


def count_repeats(text: str) -> str:
    """Replace repeated lines with one line and a count."""
    lines: list[str] = []
    previous, count = "", 0

    def flush() -> None:
        if not previous.strip():
            lines.extend([previous] * min(count, _MIN_REPEATS - 1))
        elif count < _MIN_REPEATS:
            lines.extend([previous] * count)
        else:
            lines.append(f"{previous} … (repeated {count:,} times)")

    for line in text.split("\n"):
        if count and line == previous:
            count += 1
            continue
        flush()
        previous, count = line, 1
    flush()
    return "\n".join(lines)


def error_text(ename: str, evalue: str, traceback: str) -> str:
    """Return an error's name, message and the useful frames of its traceback.

    These are the last frames in the user's own code, and the failed line of the last frame.
    Tracebacks of IPython and Python are parsed; for other formats, the head and tail are returned.
    """
    title = f"{ename}: {evalue}" if evalue else ename
    title = head_tail(clean(title), _FRAME_LIMIT)
    trace = settle_lines(strip_ansi(head_tail(traceback, _TRACEBACK_LIMIT))).strip("\n")
    starts = [match.start() for match in _FRAME.finditer(trace)]
    if not starts:
        rest = [line for line in trace.splitlines() if line.strip() and line.strip() not in title]
        useful = "\n".join(rest) if len(rest) > 1 else ""
        return f"{title}\n{head_tail(useful, _FRAME_LIMIT)}".rstrip()
    ends = [*starts[1:], len(trace)]
    frames = [trace[a:b].strip("\n") for a, b in zip(starts, ends, strict=True)]
    least = "at least " if len(traceback) > _TRACEBACK_LIMIT else ""
    return "\n".join([title, *_useful(frames, title, least)])


def _useful(frames: list[str], title: str, least: str) -> Iterator[str]:
    mine = [i for i, frame in enumerate(frames) if not LIBRARY.search(frame.split("\n", 1)[0])]
    keep = {*mine[-_CONTEXT_FRAMES:], len(frames) - 1}
    skipped = 0
    for i, frame in enumerate(frames):
        if i not in keep:
            skipped += 1
            continue
        if skipped:
            yield f"[... {least}{skipped} frame{'s' if skipped > 1 else ''} left out ...]"
            skipped = 0
        lines = [line for line in frame.split("\n") if line.strip()]
        if i not in mine:
            lines = [line for line in lines if not _CONTEXT.match(line)]
        if i == len(frames) - 1 and len(lines) > 1 and lines[-1].strip()[:200] in title:
            lines.pop()
        yield head_tail("\n".join(lines), _FRAME_LIMIT)


def _output_text(output: Mapping[str, Json], *, room: int) -> tuple[str, Image | None]:
    """Return an output's text, and its image if it has one and the limit allows."""
    match output.get("output_type"):
        case "stream":
            text = clean(joined_text(output.get("text", ""))).strip("\n")
            return (f"[stderr]\n{text}" if text and output.get("name") == "stderr" else text), None
        case "error":
            lines = output.get("traceback") or []
            trace = lines if isinstance(lines, str) else "\n".join(map(str, lines))
            name, value = str(output.get("ename", "")), str(output.get("evalue", ""))
            return error_text(name, value, trace), None
        case _:
            data = output.get("data")
            return _display(data if isinstance(data, Mapping) else {}, room=room)


def _display(data: Mapping[str, Json], *, room: int) -> tuple[str, Image | None]:
    for mime in _PICTURES:
        if mime in data:
            note, image = picture(mime, joined_text(data[mime]), wanted=room > 0)
            text = "" if _says_nothing(data) else _text(data)
            return f"{text}\n{note}".strip(), image
    kinds = [mime for mime in data if mime.startswith("application/vnd.")]
    if kinds:
        kind = kinds[0].removeprefix("application/vnd.").split("+")[0]
        text = "" if _says_nothing(data) else one_line(clean(joined_text(data["text/plain"])), 200)
        return f"[{kind}] {text}".rstrip(), None
    text = _text(data)
    return text or (f"[{', '.join(sorted(data))}]" if data else ""), None


def _text(data: Mapping[str, Json]) -> str:
    for mime in _TEXTS:
        if mime not in data or (mime == "text/plain" and _says_nothing(data) and len(data) > 1):
            continue
        value = data[mime]
        if mime == "application/json" and not isinstance(value, str):
            try:
                return f"[json] {json.dumps(value, ensure_ascii=False, default=str)}"
            except (TypeError, ValueError, RecursionError):
                return f"[json] {type(value).__name__}"
        text = joined_text(value)
        if mime == "text/html":
            text = html_to_text(head_tail(text, _HTML_LIMIT))
        return clean(text).strip("\n")
    return ""


def _says_nothing(data: Mapping[str, Json]) -> bool:
    """Return whether the plain text is only an object's name, such as `<Figure size 640x480 …>`."""
    text = joined_text(data.get("text/plain", ""))
    found = _PLACEHOLDER.fullmatch(text) if len(text) < _NAME_ALONE else None
    return found is not None or not text.strip()


def _joined(outputs: Iterable[Mapping[str, Json]]) -> Iterator[Mapping[str, Json]]:
    name, pieces = "", list[str]()
    for output in outputs:
        if output.get("output_type") == "stream" and output.get("name") == name:
            pieces.append(joined_text(output.get("text", "")))
            continue
        if pieces:
            yield {"output_type": "stream", "name": name, "text": "".join(pieces)}
        name, pieces = "", []
        if output.get("output_type") == "stream":
            name, pieces = str(output.get("name")), [joined_text(output.get("text", ""))]
        else:
            yield output
    if pieces:
        yield {"output_type": "stream", "name": name, "text": "".join(pieces)}


def joined_text(value: object) -> str:
    """Return an nbformat multi-line string, which may be stored as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "".join(str(item) for item in value)
    return str(value)


def _settle(line: str) -> str:
    """Apply one line's carriage returns, then its backspaces."""
    shown: list[str] = []
    width = 0
    # Backwards, because an earlier part is visible only beyond the end of the later ones.
    for stretch in reversed(line.split("\r")):
        text = _rub_out(stretch) if "\b" in stretch else stretch
        if len(text) > width:
            shown.append(text[width:])
            width = len(text)
    return "".join(shown)


def _rub_out(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)


def picture(mime: str, data: str, *, wanted: bool = True) -> tuple[str, Image | None]:
    """Return a note such as `[image/png 640x480]`, and the image unless it is unusable."""
    data = _BLANK.sub("", data)
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
    """Return the width and height in pixels of a base64 PNG or JPEG; None if it is neither."""
    try:
        head = base64.b64decode(data[: _JPEG_HEAD * 4 // 3 // 4 * 4], validate=True)
        return _png(head) if mime == "image/png" else _jpeg(head)
    except (binascii.Error, ValueError, struct.error, IndexError):
        return None


def _png(head: bytes) -> tuple[int, int] | None:
    """Return the size from the header chunk, which comes first (PNG specification, 11.2.2)."""
    if head[:8] != b"\x89PNG\r\n\x1a\n" or head[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """Return the size from the first frame header, after other segments (ITU T.81, B.1.1)."""
    if head[:2] != b"\xff\xd8":
        return None
    at = 2
    while head[at] == _MARKER:
        if head[at + 1] in _FRAMES:
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", head[at + 2 : at + 4])[0]
    return None


def html_to_text(markup: str) -> str:
    """Return an HTML fragment's visible text; the cells of a table row are joined by ` | `."""
    text = html.unescape("".join(_pieces(markup)))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line.removesuffix(" |") for line in lines if line)


def _pieces(markup: str) -> Iterator[str]:
    """Yield text, with a newline or a bar in place of tags that separate text."""
    at = 0
    while (start := markup.find("<", at)) >= 0:
        yield markup[at:start].replace("\n", " ")
        if markup.startswith("<!--", start):
            at = _after(markup, "-->", start)
            continue
        tag = _TAG.match(markup, start)
        if tag is None and not markup.startswith(("<!", "<?"), start):
            yield "<"
            at = start + 1
            continue
        at = _after(markup, ">", start)
        if tag is None:
            continue
        name, closing = tag[1].lower(), markup[start + 1] == "/"
        if name in _SILENT and not closing:
            end = _CLOSERS[name].search(markup, at)
            at = _after(markup, ">", end.end()) if end else len(markup)
        elif name in _LINES:
            yield "\n"
        elif closing and name in ("td", "th"):
            yield " | "
    yield markup[at:].replace("\n", " ")


def _after(text: str, mark: str, start: int) -> int:
    """Return the index after the next `mark`, or the text's length if there is none."""
    found = text.find(mark, start)
    return len(text) if found < 0 else found + len(mark)
