r"""Convert text to Markdown that is safe to display as this program's output, and clean HTML.

Notebooks render kernel output as trusted, so raw HTML in a model's answer would run. Only a few
bare tags without attributes are kept, in closed pairs. Links keep any web address, but no scheme
that executes code. Images are loaded when displayed, which tells the server who is reading: only
attachments and files in the notebook's folder are kept. Code is unchanged if all parsers agree that
it is code. Otherwise safety takes precedence over appearance.

JupyterLab removes formulas before it parses Markdown and inserts them into the finished HTML, even
into an attribute. Its MathJax supports `\href{javascript:…}`, styles that load images, and
definitions that outlive the cell. Therefore only plain formulas are typeset, and other dollar signs
are separated from their neighbours.

A single expression finds everything that a parser could act on. Each match is checked separately,
so no text is read twice and no replacement can be parsed again. An HTML cleaner cannot do this: it
would parse Markdown as HTML, and a parser that we don't control would later convert its output to
HTML.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import quote, urlsplit

from hermes_nb.core.escapes import readable, visible

DOLLAR = "<span>&#36;</span>"
"""A dollar sign in a separate element, which doesn't start a formula.

GitHub recommends this, and MathJax respects it.
"""
BACKSLASH = "<span>&#92;</span>"
"""A backslash that doesn't start a TeX command."""
ORDERS = re.compile(
    r"\\(?:href|url|style|class|cssId|data|html\w*|require|autoload|includegraphics|unicode|bbox"
    r"|mmlToken|enclose|texttip|mathtip|toggle|tooltip|f?colorbox|[gex]?def|let|futurelet|csname"
    r"|(?:re|provide)?newcommand|providecommand|(?:re)?newenvironment|DeclareMathOperator"
    r"|DeclarePaired\w+|special|input|write|openin|catcode)(?![A-Za-z])",
    re.IGNORECASE,
)
"""TeX commands that link, style, load or define, in MathJax 3 (with all packages) and in KaTeX."""
LONGEST = 4_000
"""Maximum characters of a formula."""
_FOREIGN = re.compile(r"//|script\s*:|url\s*\(|data\s*:|&#|[\"`$]", re.IGNORECASE)
"""Not allowed in a formula: addresses, and characters that end an attribute, code or the
formula."""
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_OPENING_TAG = re.compile(r"<(?=[A-Za-z/!?])")

FORMULA = (
    r"\$\$(?P<display>[^$`]+)\$\$"
    r"|\$(?!\s)(?P<inline>[^$`]*[^$`\s])\$(?!\d)"
    r"|\\\((?P<round>(?:[^$`\\]|\\(?![()\[\]]))+)\\\)"
    r"|\\\[(?P<square>(?:[^$`\\]|\\(?![()\[\]]))+)\\\]"
    r"|(?P<begin>\\begin\{(?P<env>[a-zA-Z]{1,20}\*?)\})"
)
"""Matches a formula, as part of a larger expression. For `begin`, the end must be found separately.

No alternative can extend past the start of another one, so matching takes linear time."""


def _typeset(content: str, mark: str) -> str | None:
    """Return a formula with its delimiters, made safe for typesetting, or None if it is unsafe.

    `mark` is the delimiter: `$` or `$$`, or "" for an environment, which contains its own.
    """
    formula = f"{mark}{content}{mark}"
    if len(content) > LONGEST or not content.strip() or not _balanced(content):
        return None
    if ORDERS.search(content) or _FOREIGN.search(content):
        return None
    # Some renderers do not support formulas: prevent tags, images and links in it.
    formula = _OPENING_TAG.sub(r"\\lt ", formula)
    return re.sub(r"([!\]])(?=[\[(:])", r"\1 ", formula)


def environment(text: str, start: int, name: str) -> int:
    """Return the index after the environment that starts at `start`, or -1 if it has no end."""
    closing = f"\\end{{{name}}}"
    end = text.find(closing, start, start + LONGEST)
    return end + len(closing) if end >= 0 else -1


def _inert(text: str) -> str:
    """Return TeX as plain text for Markdown, without typesetting or markup."""
    shown = "".join(f"&#{ord(c)};" if c in "*_[]!~|`" else c for c in html.escape(text))
    return shown.replace("\\", BACKSLASH).replace("$", DOLLAR)


def _balanced(content: str) -> bool:
    """Return whether the braces are balanced. JupyterLab ignores an end mark inside open braces."""
    depth = 0
    for brace in _BRACES.findall(content):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


VOID = frozenset({"br", "hr"})
"""Tags without content."""
INLINE = frozenset("b em i strong u s del ins mark small sub sup kbd".split())
"""Tags for inline formatting."""
FOLDS = frozenset({"details", "summary"})
"""Tags for collapsible sections."""
_TAG = re.compile(r"<(/?)([a-z]+)[ \t]*(/?)>", re.IGNORECASE)
_FOLD = re.compile(r"</?(?:details|summary)\b[^>]*>", re.IGNORECASE)
_FOLD_LINE = re.compile(
    r"^(?:(<details(?: open)?>)[ \t]*(?:<summary>[^<\n]*</summary>)?|<summary>[^<\n]*</summary>"
    r"|(</details>))[ \t]*$",
    re.MULTILINE,
)
_FIRST = re.compile(r"^(?:[^\S\n]|[>*+\-0-9.)])*+<", re.MULTILINE)
"""Matches a line that begins with a tag. Parsers may then treat its whole block as HTML."""


def _folds_close(text: str) -> bool:
    """Return whether all `<details>` tags in a text are on separate lines and closed."""
    depth = tags = 0
    for line in _FOLD_LINE.finditer(text):
        tags += len(_FOLD.findall(line[0]))
        depth += bool(line[1]) - bool(line[2])
        if depth < 0:
            return False
    return depth == 0 and tags == len(_FOLD.findall(text))


def _kept_tags(block: str, *, folds: bool) -> frozenset[str]:
    """Return the tag names that a block may keep. `folds` allows `<details>`."""
    kept = VOID | FOLDS if folds else VOID
    unclosed: list[str] = []
    for closing, name, void in _TAG.findall(block.lower()):
        if name not in INLINE:
            continue
        if void or (closing and (not unclosed or unclosed.pop() != name)):
            return kept
        if not closing:
            unclosed.append(name)
    return kept if unclosed else kept | INLINE


SAFE_SCHEMES = frozenset({"http", "https", "mailto", "attachment"})
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_PLAIN = "/:?#@&'*+,;=%-._~"
"""Characters to keep in an address. Other ASCII characters could end it or start markup."""


def _link_target(written: str) -> str:
    """Return a link's address for use in Markdown, or `#` if following it would execute code.

    `written` is the address as written in Markdown, with entities and backslashes.
    """
    address = _decoded(written)
    scheme, colon, _ = address.partition(":")
    leads_on = not colon or any(sign in scheme for sign in "/#?")
    if not leads_on and scheme.lower() not in SAFE_SCHEMES:
        return "#"
    ordinary = not re.search(r"[<>\"'\\$&\s]", written) and address.isascii()
    return written if ordinary else _quoted(address)


def _is_local(written: str) -> bool:
    """Return whether an image is embedded or a local file, so that no server is contacted."""
    address = _decoded(written).replace("\\", "/")
    if address.lower().startswith("attachment:"):
        return True
    return bool(address) and ":" not in address and address[0] not in "/#?"


def _decoded(written: str) -> str:
    """Return an address as a browser would interpret it."""
    plain = html.unescape(html.unescape(written))
    bare = re.sub(r"\\(?=[!-/:-@\[-`{-~])", "", plain)
    return _INVISIBLE.sub("", bare)


def _quoted(address: str) -> str:
    """Return an address in ASCII, so that a host with lookalike letters is recognisable."""
    try:
        host = urlsplit(address).hostname or ""
        if not host.isascii():
            address = address.replace(host, host.encode("idna").decode(), 1)
    except (ValueError, UnicodeError):  # an invalid host
        return "#"
    return quote(address, safe=_PLAIN)


_TOKEN = re.compile(
    rf"(?P<pair>\\\\|\\\$)|{FORMULA}|(?P<dollar>\$)"
    rf"|(?P<order>\\(?:begin|end)\b|{ORDERS.pattern})"
    r"|(?P<entity>&(?:\#[0-9]+;?|\#x[0-9a-f]+;?|[a-z][a-z0-9]*;))"
    r"|<(?P<address>(?:https?://|mailto:)[^\s<>]+)>"
    r"|(?P<tag><[a-z/!?](?:[a-z]{0,9}(?: open)?[ \t]*/?>)?)"
    r"|(?<!!)!++(?P<image>(?=\[)(?:\[[^\[\]\n`\\]*\]\((?P<source>[^\s()<>\[\]`$]+)"
    r"(?=\)|[ ]\"[^\"\n\\]*\"\)))?)"
    r"|(?P<opening>\]\(|\]:)(?P<gap>[\s>]*)"
    r"(?:<(?:(?P<angle>[^<>\n]*)>(?=\)))?|(?P<target>[^\s()<>\[\]!`$]*))",
    re.IGNORECASE,
)
_TELLING = re.compile(r"[\w$\\(){}\[\]:/]", re.ASCII)
"""Characters that must not be hidden in an entity, because the checks search plain text."""
_FORMULAS = {"display": "$$", "inline": "$", "round": "$", "square": "$$"}
"""Delimiters for each kind of formula."""


def clean(text: str, *, tags: frozenset[str] = frozenset(), lone: bool = False) -> str:
    """Return inline text with active content removed.

    `tags` are the names of the bare tags to keep. `lone` means that the text has only one dollar
    sign, so it cannot start a formula.
    """
    out: list[str] = []
    at = 0
    while token := _TOKEN.search(text, at):
        out.append(text[at : token.start()])
        at = token.end()
        kind = token.lastgroup or ""
        if token["begin"]:
            end = environment(text, at, token["env"])
            formula = _typeset(text[token.start() : end], "") if end >= 0 else None
            out.append(formula or BACKSLASH + token["begin"][1:])
            at = end if formula else at
        elif mark := _FORMULAS.get(kind):
            formula = _typeset(token[kind], mark) or _inert(token[0])
            touching = any(out) and next(filter(None, reversed(out))).endswith("$")
            out.append(f" {formula}" if touching else formula)
        elif token["opening"]:
            out.append(_link(token))
        elif token["image"] is not None:
            out.append("!" if token["source"] and _is_local(token["source"]) else "")
            at = token.start("image")
        elif token["tag"]:
            tag = token["tag"]
            bare = _TAG.fullmatch(tag) or re.fullmatch(r"<()(details) open()>", tag)
            stays = bare and bare[2].lower() in tags
            out.append(tag if stays else "&lt;")
            at = at if stays else token.start() + 1
        else:
            out.append(_sign(token, lone=lone))
    return "".join([*out, text[at:]])


def _link(token: re.Match[str]) -> str:
    """Return the start of a link target or of a link definition."""
    before = token["opening"] + token["gap"]
    if token["target"] is not None:
        return before + _link_target(token["target"])
    if token["angle"] and token["opening"] == "](":
        return before + _link_target(token["angle"].replace(" ", "%20"))
    return f"{before}&lt;{html.escape(token['angle'] or '')}"


def _sign(token: re.Match[str], *, lone: bool) -> str:
    """Return a character with a special meaning as plain text."""
    if token["dollar"]:
        return "$" if lone else DOLLAR
    if token["address"]:
        return _link_target(token["address"])
    if token["entity"]:
        telling = _TELLING.search(html.unescape(token[0]))
        return f"&amp;{token[0][1:]}" if telling else token[0]
    if token["pair"]:  # these can start a formula even if escaped
        dollar = token[0] if lone else DOLLAR
        return dollar if token[0] == r"\$" else BACKSLASH
    return BACKSLASH + token[0][1:]


_HTML = (
    "div span b i small br ul ol li code pre p em strong details summary sub mark "
    "table caption thead tbody tfoot tr th td"
).split()
_SVG = "svg g rect line polyline title".split()
_SHAPE = frozenset("x y x1 y1 x2 y2 width height rx fill points".split())
_ATTRIBUTES = {
    **{tag: frozenset({"class", "role", "aria-label", "tabindex"}) for tag in (*_HTML, "svg")},
    **{tag: _SHAPE | {"class"} for tag in ("rect", "line", "polyline", "g")},
}
_ATTRIBUTES["svg"] |= {"width", "height", "viewBox", "preserveAspectRatio"}
_ATTRIBUTES["i"] |= {"style"}


@cache
def _cleaner() -> Callable[[str], str]:
    import nh3

    return nh3.Cleaner(
        tags={*_HTML, *_SVG},
        attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
        clean_content_tags={"script", "style"},
        filter_style_properties={"background"},
        url_schemes=set(),
        link_rel=None,
    ).clean


def clean_html(fragment: str) -> str:
    """Reduce an HTML fragment to text, plain elements and simple SVG, which load nothing."""
    return _cleaner()(fragment)


FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
TICKS = re.compile(r"`+")
MARKS = re.compile(r"[\\`*\[\]!~|$\n]|(?<!\w)_|_(?!\w)")
"""Characters that Markdown could interpret as markup, except underscores inside a word."""
DIAGRAM = re.compile(r"://|url\s*\(|@\{|%%\{|^---|\bclick\b|\bimg\b|script|@import|<", re.I | re.M)
"""Not allowed in a rendered diagram: JupyterLab would load images and styles for it."""
UNSURE = re.compile(rf"\$|\\(?:begin|end)\b|\\[()\[\]]|\]:|{ORDERS.pattern}", re.IGNORECASE)
"""Text that a parser may act on before it recognises code."""
_LANGUAGE = re.compile(r"[^\w+#.-]")
_ODD = re.compile(r"[`|]|<(?=[A-Za-z/!?])")


@dataclass(slots=True)
class _Part:
    """Lines of a fenced block, or of the text between two blocks."""

    language: str | None = None
    """The fenced block's language. None outside blocks."""
    lines: list[str] = field(default_factory=list)
    """The lines."""


def safe_markdown(text: str) -> str:
    """Remove from `text` anything that a front end would execute, load or apply as a style.

    If the text starts or ends with a fenced block or a tag, an empty line is added there.
    Otherwise, a caller that adds a list number before the text or an ellipsis after it would break
    the fence, and its content would become active.
    """
    parts = list(_parts(readable(text).split("\n")))
    prose = "\n".join(line for part in parts if part.language is None for line in part.lines)
    folds = _folds_close(prose)
    blocks: list[str] = []
    for part in parts:
        if part.language is None:
            blocks += [_prose(part.lines, folds=folds)] if part.lines else []
        else:
            code = "\n".join(part.lines)
            loads = part.language.lower() == "mermaid" and DIAGRAM.search(code)
            blocks.append(code_block(code, "text" if loads else part.language))
    # With blank lines around it, every parser opens and closes a fence here. Formulas end at a
    # blank line, so none can extend into it.
    cleaned = "\n\n".join(blocks).strip("\n")
    first = "\n" if cleaned.startswith(("```", "<")) else ""
    return f"{first}{cleaned}\n" if cleaned.endswith(("```", ">")) else first + cleaned


def code_block(text: str, language: str = "") -> str:
    """Return a fenced block with `text`, which may itself contain backticks."""
    text = visible(text, lines=True)
    longest = max((len(run) for run in TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{_LANGUAGE.sub('', language)}\n{text}\n{fence}"


def code_span(text: str) -> str:
    """Return inline code for one line of text, safe inside and outside tables."""
    flat = visible(" ".join(text.split())) or " "
    if _ODD.search(flat) or UNSURE.search(flat):
        return f"<code>{_spelled(flat)}</code>"
    return f"`{flat}`"


def escape(text: str) -> str:
    """Return text without markup, for use between HTML tags in Markdown."""
    apart = {"$": DOLLAR, "\\": BACKSLASH, "\n": "<br>"}
    return MARKS.sub(
        lambda match: apart.get(match[0]) or f"&#{ord(match[0])};",
        html.escape(visible(text, lines=True)),
    )


def _spelled(text: str) -> str:
    """Return text for a `code` element, in which formulas are ignored."""
    return MARKS.sub(lambda match: f"&#{ord(match[0])};", html.escape(text))


def _parts(lines: list[str]) -> Iterator[_Part]:
    """Split a text into fenced blocks and text between them. A block may be unclosed."""
    part, fence = _Part(), ""
    for line in lines:
        found = FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2].strip():
                yield part
                part, fence = _Part(), ""
            else:
                part.lines.append(line)
        elif found and (found[1][0] == "~" or "`" not in found[2]):
            yield part
            words = found[2].split()
            part, fence = _Part(words[0] if words else ""), found[1]
        else:
            part.lines.append(line)
    yield part


def _prose(lines: list[str], *, folds: bool) -> str:
    """Clean lines outside fences, block by block. A block ends at a blank line."""
    out: list[str] = []
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
            continue
        out += [_block(block, folds=folds)] if block else []
        out.append(line)
        block = []
    return "\n".join(out).strip("\n")


def _block(lines: list[str], *, folds: bool) -> str:
    """Clean a block. Inline code is kept only if it is closed on the same line."""
    whole = "\n".join(lines)
    lone = whole.count("$") == 1 and not re.search(r"\\[(\[]", whole)
    tags = _kept_tags(whole, folds=folds)
    spans = [_spans(line) for line in lines]
    if any(span is None for span in spans):
        return clean(whole, tags=tags, lone=lone)
    as_html = _FIRST.search(whole) is not None
    out: list[str] = []
    at = offset = 0
    for line, found in zip(lines, spans, strict=True):
        for start, end in found or []:
            out.append(clean(whole[at : offset + start], tags=tags, lone=lone))
            out.append(_code(whole[offset + start : offset + end], as_html=as_html))
            at = offset + end
        offset += len(line) + 1
    return "".join([*out, clean(whole[at:], tags=tags, lone=lone)])


def _code(span: str, *, as_html: bool) -> str:
    """Return a code span unchanged, or as an element if some parser might not recognise it."""
    if not as_html and not UNSURE.search(span):
        return span
    ticks = len(span) - len(span.lstrip("`"))
    content = span[ticks:-ticks]
    padded = content.startswith(" ") and content.endswith(" ") and content.strip()
    return f"<code>{_spelled(content[1:-1] if padded else content)}</code>"


def _spans(line: str) -> list[tuple[int, int]] | None:
    """Return the positions of a line's code spans, or None if the backticks are not balanced.

    Parsers disagree about a backslash before a backtick, and about a pipe inside a span, which
    would split a table. Such lines have no reliable spans.
    """
    runs = [(match.start(), match.end()) for match in TICKS.finditer(line)]
    if not runs:
        return []
    if "\\`" in line:
        return None
    spans: list[tuple[int, int]] = []
    index = 0
    while index < len(runs):
        start, end = runs[index]
        closing = next(
            (i for i in range(index + 1, len(runs)) if runs[i][1] - runs[i][0] == end - start), None
        )
        if closing is None or "|" in line[end : runs[closing][0]]:
            return None
        spans.append((start, runs[closing][1]))
        index = closing + 1
    return spans
