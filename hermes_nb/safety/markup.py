r"""Markdown that is safe to show as our own output, and HTML of ours.

A notebook renders what a kernel sends as trusted: raw HTML in a model's answer would run. Of tags
stay a few bare ones, which can carry nothing, in pairs that close. A link keeps any address of the
web, but no scheme that executes. A picture is loaded as soon as it is shown, which tells its server
who reads: only the notebook's own folder and its attachments will do. Code is left alone where
every parser agrees that it is code; where they might not, safety wins over looks.

JupyterLab cuts formulas out before it reads Markdown and puts them back into the finished HTML,
even into an attribute; its MathJax knows `\href{javascript:…}`, styles that load pictures, and
definitions that outlive the cell. So what is no plain formula stays text, and a dollar that opens
none is parted from its neighbours.

One expression finds whatever a parser could obey; each finding is judged on its own, so that no
text is read twice and none of the replacements can be read again. No HTML cleaner could do this: it
would take Markdown for HTML, and what comes out becomes HTML later, by a parser we do not choose.
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
"""A dollar in an element of its own begins no formula: GitHub's own advice, and MathJax agrees."""
BACKSLASH = "<span>&#92;</span>"
ORDERS = re.compile(
    r"\\(?:href|url|style|class|cssId|data|html\w*|require|autoload|includegraphics|unicode|bbox"
    r"|mmlToken|enclose|texttip|mathtip|toggle|tooltip|f?colorbox|[gex]?def|let|futurelet|csname"
    r"|(?:re|provide)?newcommand|providecommand|(?:re)?newenvironment|DeclareMathOperator"
    r"|DeclarePaired\w+|special|input|write|openin|catcode)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Commands that link, style, load or define: of MathJax 3 with all its packages, and KaTeX."""
LONGEST = 4_000
"""Characters that a formula may have."""
_FOREIGN = re.compile(r"//|script\s*:|url\s*\(|data\s*:|&#|[\"`$]", re.IGNORECASE)
"""What stands in no formula: addresses, and signs that end an attribute, code or the formula."""
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_OPENING_TAG = re.compile(r"<(?=[A-Za-z/!?])")

FORMULA = (
    r"\$\$(?P<display>[^$`]+)\$\$"
    r"|\$(?!\s)(?P<inline>[^$`]*[^$`\s])\$(?!\d)"
    r"|\\\((?P<round>(?:[^$`\\]|\\(?![()\[\]]))+)\\\)"
    r"|\\\[(?P<square>(?:[^$`\\]|\\(?![()\[\]]))+)\\\]"
    r"|(?P<begin>\\begin\{(?P<env>[a-zA-Z]{1,20}\*?)\})"
)
"""What opens and closes a formula, as part of a larger expression; `begin` has its end to be found.

No alternative can run past the next sign that opens another one, so that time stays linear.
"""


def _typeset(content: str, mark: str) -> str | None:
    """Return a formula between its marks as front ends may typeset it, None for what is no formula.

    `mark` is `$` or `$$`, or "" for an environment, which is its own mark.
    """
    formula = f"{mark}{content}{mark}"
    if len(content) > LONGEST or not content.strip() or not _balanced(content):
        return None
    if ORDERS.search(content) or _FOREIGN.search(content):
        return None
    # For readers that know no formulas: no tag, no picture and no link in it either.
    formula = _OPENING_TAG.sub(r"\\lt ", formula)
    return re.sub(r"([!\]])(?=[\[(:])", r"\1 ", formula)


def environment(text: str, start: int, name: str) -> int:
    """Return the index behind the environment that begins at `start`, -1 where it has no end."""
    closing = f"\\end{{{name}}}"
    end = text.find(closing, start, start + LONGEST)
    return end + len(closing) if end >= 0 else -1


def _inert(text: str) -> str:
    """Return TeX as plain text for Markdown: nothing of it is typeset or taken for markup."""
    shown = "".join(f"&#{ord(c)};" if c in "*_[]!~|`" else c for c in html.escape(text))
    return shown.replace("\\", BACKSLASH).replace("$", DOLLAR)


def _balanced(content: str) -> bool:
    """Return whether the braces pair up; JupyterLab looks for the end behind an open one."""
    depth = 0
    for brace in _BRACES.findall(content):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


VOID = frozenset({"br", "hr"})
INLINE = frozenset("b em i strong u s del ins mark small sub sup kbd".split())
FOLDS = frozenset({"details", "summary"})
_TAG = re.compile(r"<(/?)([a-z]+)[ \t]*(/?)>", re.IGNORECASE)
_FOLD = re.compile(r"</?(?:details|summary)\b[^>]*>", re.IGNORECASE)
_FOLD_LINE = re.compile(
    r"^(?:(<details(?: open)?>)[ \t]*(?:<summary>[^<\n]*</summary>)?|<summary>[^<\n]*</summary>"
    r"|(</details>))[ \t]*$",
    re.MULTILINE,
)
_FIRST = re.compile(r"^(?:[^\S\n]|[>*+\-0-9.)])*+<", re.MULTILINE)
"""A line that begins with a tag: parsers may then read its whole block as HTML."""


def _folds_close(text: str) -> bool:
    """Return whether a text's `<details>` stand on lines of their own and all of them close."""
    depth = tags = 0
    for line in _FOLD_LINE.finditer(text):
        tags += len(_FOLD.findall(line[0]))
        depth += bool(line[1]) - bool(line[2])
        if depth < 0:
            return False
    return depth == 0 and tags == len(_FOLD.findall(text))


def _kept_tags(block: str, *, folds: bool) -> frozenset[str]:
    """Return the names of the tags that a block may keep; `folds` allows `<details>`."""
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
"""What an address may hold as it stands; other ASCII signs could end it or begin markup."""


def _link_target(written: str) -> str:
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


def _is_local(written: str) -> bool:
    """Return whether an image is embedded or a local file, so that no server is contacted."""
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
"""What a text must not say by an entity, as we look for it in plain."""
_FORMULAS = {"display": "$$", "inline": "$", "round": "$", "square": "$$"}


def clean(text: str, *, tags: frozenset[str] = frozenset(), lone: bool = False) -> str:
    """Return running text with nothing in it that is obeyed.

    `tags` are the names of bare tags that stay. `lone` says that a dollar is the only one around,
    so that it cannot open a formula.
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
    """Return the beginning of a link's target, or of a definition of one."""
    before = token["opening"] + token["gap"]
    if token["target"] is not None:
        return before + _link_target(token["target"])
    if token["angle"] and token["opening"] == "](":
        return before + _link_target(token["angle"].replace(" ", "%20"))
    return f"{before}&lt;{html.escape(token['angle'] or '')}"


def _sign(token: re.Match[str], *, lone: bool) -> str:
    """Return a sign that means something by itself as what it is."""
    if token["dollar"]:
        return "$" if lone else DOLLAR
    if token["address"]:
        return _link_target(token["address"])
    if token["entity"]:
        telling = _TELLING.search(html.unescape(token[0]))
        return f"&amp;{token[0][1:]}" if telling else token[0]
    if token["pair"]:  # escaped, both begin formulas too
        dollar = token[0] if lone else DOLLAR
        return dollar if token[0] == r"\$" else BACKSLASH
    return BACKSLASH + token[0][1:]


_HTML = "div span b i small br ul ol li code pre p em strong details summary sub mark".split()
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
    """Return a fragment of ours without anything but text, plain elements and small drawings."""
    return _cleaner()(fragment)


FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
TICKS = re.compile(r"`+")
MARKS = re.compile(r"[\\`*\[\]!~|$\n]|(?<!\w)_|_(?!\w)")
"""What Markdown could take for markup; an underscore inside a word is not."""
DIAGRAM = re.compile(r"://|url\s*\(|@\{|%%\{|^---|\bclick\b|\bimg\b|script|@import|<", re.I | re.M)
"""What a diagram may not have to be drawn: JupyterLab would load pictures and styles for it."""
UNSURE = re.compile(rf"\$|\\(?:begin|end)\b|\\[()\[\]]|\]:|{ORDERS.pattern}", re.IGNORECASE)
"""What a parser may obey before it sees that it stands in code."""
_LANGUAGE = re.compile(r"[^\w+#.-]")
_ODD = re.compile(r"[`|]|<(?=[A-Za-z/!?])")


@dataclass(slots=True)
class _Part:
    """Lines of a text: of one fenced block, or of all between two of them."""

    language: str | None = None
    lines: list[str] = field(default_factory=list)


def safe_markdown(text: str) -> str:
    """Return `text` with nothing in it that a front end would run, load or take for a command.

    What begins or ends with a fenced block or a tag has an empty line there: behind the number of
    a list or before an ellipsis, the fence would be none, and what it holds would be obeyed.
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
    # Blank lines around a fence: then every parser opens and closes it here, and no formula, which
    # ends at a blank line, can reach into it.
    cleaned = "\n\n".join(blocks).strip("\n")
    first = "\n" if cleaned.startswith(("```", "<")) else ""
    return f"{first}{cleaned}\n" if cleaned.endswith(("```", ">")) else first + cleaned


def code_block(text: str, language: str = "") -> str:
    """Return a fenced block that holds `text` whatever backticks it contains."""
    text = visible(text, lines=True)
    longest = max((len(run) for run in TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{_LANGUAGE.sub('', language)}\n{text}\n{fence}"


def code_span(text: str) -> str:
    """Return inline code for one line of text, safe inside a table and outside one."""
    flat = visible(" ".join(text.split())) or " "
    if _ODD.search(flat) or UNSURE.search(flat):
        return f"<code>{_spelled(flat)}</code>"
    return f"`{flat}`"


def escape(text: str) -> str:
    """Return text for use between HTML tags inside Markdown: nothing in it is markup."""
    apart = {"$": DOLLAR, "\\": BACKSLASH, "\n": "<br>"}
    return MARKS.sub(
        lambda match: apart.get(match[0]) or f"&#{ord(match[0])};",
        html.escape(visible(text, lines=True)),
    )


def _spelled(text: str) -> str:
    """Return text for a `code` element; formulas are not looked for in there."""
    return MARKS.sub(lambda match: f"&#{ord(match[0])};", html.escape(text))


def _parts(lines: list[str]) -> Iterator[_Part]:
    """Split a text at its fences; one that nothing closes reaches to the end."""
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
    """Clean lines outside fences, block by block: a block ends at a blank line."""
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
    """Clean one block; its inline code counts only if each line closes what it opens."""
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
    """Return a code span as it stands, or as an element where a parser could see no span."""
    if not as_html and not UNSURE.search(span):
        return span
    ticks = len(span) - len(span.lstrip("`"))
    content = span[ticks:-ticks]
    padded = content.startswith(" ") and content.endswith(" ") and content.strip()
    return f"<code>{_spelled(content[1:-1] if padded else content)}</code>"


def _spans(line: str) -> list[tuple[int, int]] | None:
    """Return where a line's code spans lie, None when its backticks do not pair up.

    A backslash before a backtick, or a pipe inside a span (a table would split it), are cases
    where parsers differ: such a line has no spans that could be trusted.
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
