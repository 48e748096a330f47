"""Parse an email: its sender, its thread, the sender's own text and quoted text.

Email headers are not trusted, and exactly one sender is accepted. Only text that the sender typed
counts as the user's text, so a command in a quoted line has no effect. Emails from programs and
mailing lists are recognised and not answered. As much as possible of a malformed email is parsed.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email import errors, policy
from email.headerregistry import UniqueAddressHeader
from email.message import EmailMessage
from email.parser import BytesParser
from html.parser import HTMLParser

from hermes_nb.core.json_values import clean_text
from hermes_nb.core.text import one_line

PARTS = 200
"""Maximum number of parts to read."""
DEEPEST = 20
MARKS = 5_000
"""Maximum number of lines that look like part separators."""
CHARACTERS = 100_000
"""Maximum characters of text to read."""
HEADER, LONGEST = 1_000, {"references": 20_000}
"""Maximum length of a header in characters."""
BROKEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors that the standard library raises for malformed headers and parts."""
_BROKEN_HEAD = (
    errors.FirstHeaderLineIsContinuationDefect,
    errors.MisplacedEnvelopeHeaderDefect,
    errors.MissingHeaderBodySeparatorDefect,
)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_NO_LINE = re.compile(rb"\r(?!\n)|\0")
"""Bytes that only some programs treat as a header's end."""
_ID = re.compile(r"<[!-;=?-~]{1,300}>")
_ADDRESS = re.compile(r"[^\s@<>\"(),;:\\]{1,64}@[\w.-]{1,255}", re.ASCII)
_NOBODY = re.compile(r"(mailer-daemon|postmaster|no-?reply|do-?not-?reply|bounces?)([+=-].*)?@")
_PROGRAMS = ("list-id", "list-post", "list-unsubscribe", "x-autoreply", "x-autorespond")


@dataclass(frozen=True, slots=True)
class Attached:
    """A file attached to an email."""

    name: str
    """File name."""
    mime: str
    """MIME type."""
    data: bytes
    """The contents; empty if they could not be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A parsed email."""

    id: str
    """Message-ID with brackets; generated if the email has none."""
    sender: str
    """The sender's address; "" unless there is exactly one valid address."""
    subject: str
    """Subject on one line."""
    thread: tuple[str, ...]
    """Ids in `References` and `In-Reply-To`, with brackets."""
    automatic: bool
    """Whether a program, a list or a server sent it."""
    replies_to: str = ""
    """The id in `In-Reply-To`; "" unless there is exactly one."""
    text: str = ""
    """The sender's own text."""
    quoted: str = ""
    """Quoted and forwarded text."""
    files: tuple[Attached, ...] = ()
    """Attached files."""
    whole: bool = True
    """Whether all parts could be read."""


def read_mail(data: bytes) -> Mail:
    """Parse an email. Given only the headers, the result has no text."""
    message = parsed(data)
    own = _ID.findall(header(message, "message-id"))
    made = hashlib.sha256(data.partition(b"\r\n\r\n")[0]).hexdigest()
    before = f"{header(message, 'references')} {header(message, 'in-reply-to')}"
    replied = _ID.findall(" ".join(map(str, message.get_all("in-reply-to", []))))
    is_plain = not _NO_LINE.search(_HEAD_END.split(data, maxsplit=1)[0])
    text, quoted, files = _contents(message)
    return Mail(
        id=own[0] if own else f"<{made}@no-message-id>",
        sender=_sender(message) if is_plain else "",
        subject=one_line(clean_text(header(message, "subject")), 200),
        thread=tuple(dict.fromkeys(_ID.findall(before))),
        automatic=_is_automatic(message),
        replies_to=replied[0] if len(replied) == 1 else "",
        text=text,
        quoted=quoted,
        files=files,
        whole=not (message.get_content_maintype() == "multipart" and not message.is_multipart()),
    )


class _Bounded(policy.EmailPolicy):
    """Truncates overlong headers, which the standard library would take minutes to parse.

    An overlong sender header is removed instead.
    """

    def header_fetch_parse(self, name: str, value: str) -> str:
        most = LONGEST.get(name.lower(), HEADER)
        short = value if len(value) <= most else "" if name.lower() == "from" else value[:most]
        try:
            return super().header_fetch_parse(name, short)  # type: ignore[no-any-return,unused-ignore]
        except Exception:  # noqa: BLE001 - any error from the standard library
            return super().header_fetch_parse(name, "")  # type: ignore[no-any-return,unused-ignore]


def parsed(data: bytes) -> EmailMessage:
    """Parse an email, or only its headers if its parts are too many or too deeply nested."""
    reader: BytesParser[EmailMessage] = BytesParser(EmailMessage, policy=_Bounded())  # type: ignore[arg-type]
    many = data.lower().count(b"\ncontent-type") > PARTS or data.count(b"\n--") > MARKS
    try:
        return reader.parsebytes(data, headersonly=many)
    except BROKEN:
        return reader.parsebytes(data, headersonly=True)


def header(message: EmailMessage, name: str) -> str:
    """Return the first header with that name on one line, or "" if it is missing or unreadable."""
    return " ".join(str(message.get(name, "")).split())


def _sender(message: EmailMessage) -> str:
    """Return an email's only sender address, in lower case.

    Returns "" for incomplete headers, several addresses or an ambiguous address, since the server
    that checks senders might read it differently.
    """
    if any(isinstance(each, _BROKEN_HEAD) for each in message.defects):
        return ""
    try:
        (_,) = [name for name, _ in message.raw_items() if name.lower() == "from"]
        found = message.get("from")
        if not isinstance(found, UniqueAddressHeader) or found.defects:  # type: ignore[attr-defined]
            return ""
        (address,) = found.addresses
        spec = str(address.addr_spec)
    except BROKEN:
        return ""
    return spec.lower() if _ADDRESS.fullmatch(spec) else ""


def _is_automatic(message: EmailMessage) -> bool:
    """Return whether a program, a mailing list or a server sent it (RFC 3834 and older rules)."""
    text = header(message, "auto-submitted").lower().partition(";")[0].strip()
    return (
        text not in ("", "no")
        or header(message, "precedence").lower() in ("bulk", "junk", "list", "auto_reply")
        or header(message, "return-path") == "<>"
        or any(name in message for name in _PROGRAMS)
        or message.get_content_type() == "multipart/report"
        or _NOBODY.match(_sender(message)) is not None
    )


_SPEAKS_OF = {"dmarc": "header.from", "dkim": "header.d", "spf": "smtp.mailfrom"}
"""The property that contains the checked domain, for each method in Authentication-Results."""
_OUTSIDE = re.compile(r'"((?:[^"\\]|\\.)*)"|[(]|[^"()\\]+')
_COMMENT = re.compile(r"\\.|[()]|[^()\\]+")
_CONTROL = re.compile(r"[\0-\x08\n-\x1f\x7f]")


def authenticated(message: EmailMessage, server: str, domain: str) -> bool:
    """Return whether `server` confirms in its topmost header that an email is from `domain`.

    A DMARC result is decisive; without one, DKIM or SPF for exactly that domain is sufficient. A
    malformed header (RFC 8601) fails the check, as do all headers below it.
    """
    for name, raw in message.raw_items():
        if name.lower() != "authentication-results":
            continue
        flat = _flattened(str(raw))
        if flat is None:
            return False
        first, *results = [re.sub(r"\s*=\s*", "=", each).split() for each in flat.split(";")]
        if first in ([server.lower()], [server.lower(), "1"]):
            return _passes(results, domain)
    return False


def _flattened(raw: str) -> str | None:
    """Return a structured header in lower case without comments, or None if it is malformed.

    A quoted string is replaced by its content if that is one word, otherwise by a NUL character.
    """
    value, depth, at = re.sub(r"\r?\n(?=[ \t])", "", raw), 0, 0
    found: list[str] = []
    if _CONTROL.search(value):
        return None
    while at < len(value):
        piece = (_COMMENT if depth else _OUTSIDE).match(value, at)
        if piece is None:
            return None
        text, at = piece[0], piece.end()
        if depth or text == "(":
            depth += {"(": 1, ")": -1}.get(text, 0)
            found.append(" ")
        elif text.startswith('"'):
            found.append(piece[1] if re.fullmatch(r"[\w.@+-]+", piece[1], re.ASCII) else "\0")
        else:
            found.append(text)
    return None if depth else "".join(found).lower()


def _passes(results: list[list[str]], domain: str) -> bool:
    """Return whether the results prove a domain: all DMARC results, or one for DKIM or SPF."""
    found: dict[str, list[bool]] = {}
    for verdict, *properties in filter(None, results):
        method, _, result = verdict.partition("=")
        method = method.partition("/")[0]
        about = f"{_SPEAKS_OF.get(method)}="
        domains = {
            each.removeprefix(about).rpartition("@")[2]
            for each in properties
            if each.startswith(about)
        }
        found.setdefault(method, []).append(result == "pass" and domains == {domain})
    return all(found["dmarc"]) if "dmarc" in found else any(map(any, found.values()))


def _contents(message: EmailMessage) -> tuple[str, str, tuple[Attached, ...]]:
    """Return the sender's own text, the quoted text and the files."""
    texts: list[tuple[str, str]] = []
    files: list[Attached] = []
    for number, part in enumerate(itertools.islice(_leaves(message), PARTS)):
        mime = part.get_content_type()
        try:
            name = part.get_filename() or ""
            attached = bool(name) or part.get_content_disposition() == "attachment"
            data = part.get_payload(decode=True)
            inner = part.get_payload(0) if mime == "message/rfc822" else None
            data = inner.as_bytes() if isinstance(inner, EmailMessage) else data
        except BROKEN:
            continue
        if not isinstance(data, bytes):
            continue
        if mime in ("text/plain", "text/html") and not attached:
            texts.append((mime, _decoded(part, data)))
        else:
            suffix = {"message/rfc822": "eml"}.get(mime, mime.rpartition("/")[2])
            files.append(Attached(name or f"part-{number}.{suffix}", mime, data))
    plain = [text for mime, text in texts if mime == "text/plain" and text.strip()]
    read = plain or [text_of_html(text) for mime, text in texts if mime == "text/html"]
    own, quoted = split_quoted(clean_text("\n".join(read))[:CHARACTERS])
    return own, quoted, tuple(files)


def _leaves(part: EmailMessage, depth: int = 0) -> Iterator[EmailMessage]:
    """Yield the parts with content; an attached email counts as one part."""
    inner = part.get_payload() if part.is_multipart() else None
    if part.get_content_maintype() == "multipart" and isinstance(inner, list) and depth < DEEPEST:
        for each in inner:
            if isinstance(each, EmailMessage):
                yield from _leaves(each, depth + 1)
    elif part.get_content_maintype() != "multipart":
        yield part


def _decoded(part: EmailMessage, data: bytes) -> str:
    try:
        return data.decode(part.get_content_charset("utf-8"), "replace")
    except (LookupError, ValueError):  # unknown charset
        return data.decode("utf-8", "replace")


_FORWARDED = re.compile(
    r"\s*(?:-{3,}.{0,10}(?:original|forwarded|ursprüngliche|weitergeleitete|transféré|reenviado)"
    r".{0,40}-{3,}|_{20,}|begin forwarded message:)\s*",
    re.IGNORECASE,
)
"""A line that email clients use to introduce forwarded or quoted messages."""
_HEADER = re.compile(r"\s*\*?(?:from|von|de|da):\*?\s.*\S", re.IGNORECASE)
_HEADERS = re.compile(
    r"\s*\*?(?:sent|date|to|subject|gesendet|datum|an|betreff|envoyé|objet|à|enviado|para|asunto"
    r"|inviato|oggetto|a):\*?\s",
    re.IGNORECASE,
)
_DATED = re.compile(r".*(?:\d[:.]\d\d|\d{4}).*[:：]\s*")
_ADDRESSED = re.compile(r".*@.*[:：]\s*")
"""With `_DATED`: a line such as `On Monday, 3 March 2025 at 10:00, Ada <ada@example.org> wrote:`,
in any language."""
WRAPPED, WIDEST, APART = 3, 1_000, 9
"""Limits for the lines that introduce a quote: the number of lines, of characters, and of empty
lines after them."""


def split_quoted(text: str) -> tuple[str, str]:
    """Split an email's text into the sender's own text and quoted text, without the signature.

    Quoted text consists of lines starting with `>`, the line that introduces them, and everything
    after the start of a forwarded or original message.
    """
    lines = [line.rstrip("\r") for line in text.split("\n")]
    end = next((n for n, line in enumerate(lines) if _begins(lines, n)), len(lines))
    own: list[str] = []
    quoted: list[str] = []
    inside = False
    for line in lines[:end]:
        if line.lstrip().startswith(">"):
            if not inside:
                begins = len(own) - _introduction(own)
                quoted += own[begins:]
                del own[begins:]
            quoted.append(line)
        elif line in ("-- ", "--"):  # the signature
            break
        else:
            own.append(line)
        inside = line.lstrip().startswith(">")
    return "\n".join(own).strip(), "\n".join([*quoted, *lines[end:]]).strip()


def _begins(lines: list[str], at: int) -> bool:
    """Return whether another message starts at this line and continues to the end."""
    if _FORWARDED.fullmatch(lines[at]):
        return True
    if not _HEADER.fullmatch(lines[at]):
        return False
    rest = (lines[n] for n in range(at + 1, len(lines)))  # quoted lines may be in between
    following = itertools.islice((line for line in rest if not line.lstrip().startswith(">")), 3)
    return any(map(_HEADERS.match, following))


def _introduction(own: list[str]) -> int:
    """Return the number of lines at the end that introduce a quote."""
    filled = len(own)
    while filled > max(0, len(own) - APART) and not own[filled - 1].strip():
        filled -= 1
    last = list(itertools.takewhile(str.strip, reversed(own[max(0, filled - WRAPPED) : filled])))
    if sum(map(len, last)) > WIDEST:
        return 0
    for pattern, counts in ((_DATED, range(1, len(last) + 1)), (_ADDRESSED, [len(last)])):
        for count in counts:
            if last and pattern.fullmatch(" ".join(reversed(last[:count]))):
                return len(own) - filled + count
    return 0


_BLOCKS = frozenset("p div br li tr table h1 h2 h3 h4 h5 h6 pre ul ol hr blockquote".split())
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0", re.IGNORECASE)


class _Reader(HTMLParser):
    """Collects the visible text; quotes are marked with `>`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self.quotes = self.unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        hidden = any(name == "hidden" or _HIDDEN.search(value or "") for name, value in attrs)
        if tag not in ("br", "hr") and (hidden or self.unseen):
            self.unseen += 1
        self.quotes += tag == "blockquote"
        self._line(tag)

    def handle_endtag(self, tag: str) -> None:
        self.unseen -= self.unseen > 0
        self.quotes -= tag == "blockquote"
        self._line(tag)

    def handle_data(self, data: str) -> None:
        if not self.unseen:
            self.out.append(re.sub(r"\s+", " ", data))

    def _line(self, tag: str) -> None:
        if tag in _BLOCKS and not self.unseen:
            self.out.append("\n" + "> " * min(self.quotes, 3))


def text_of_html(source: str) -> str:
    """Return an HTML email's visible text, one line per block."""
    import nh3

    reader = _Reader()
    reader.feed(  # the parser is very slow for malformed HTML
        nh3.clean(
            source[: 2 * CHARACTERS],
            tags=_BLOCKS | {"span", "b", "i", "font", "td", "center"},
            attributes={"*": {"hidden", "style"}},
            clean_content_tags={"script", "style", "title", "template", "noscript", "svg"},
        )
    )
    reader.close()
    lines = (line.strip() for line in "".join(reader.out).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
