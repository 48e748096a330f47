"""Markdown that is safe to show as our own output.

A notebook renders what a kernel sends as trusted: raw HTML in a model's answer would run. So tags
are shown instead of obeyed, but for a few that cannot carry anything; a picture from elsewhere
becomes a link (loading it would tell its server who reads), a link keeps only schemes that cannot
execute, and a formula only what typesets. Code is left alone where every Markdown parser agrees
that it is code; where they might not, safety wins over looks.

No HTML cleaner could do this: it would take Markdown for HTML, and what comes out becomes HTML
later, by a parser that we do not choose. HTML that we write ourselves goes through `clean_html`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hermes_nb.safety.markdown import (
    BACKSLASH,
    DOLLAR,
    ORDERS,
    begins_html,
    clean,
    folds_close,
    kept_tags,
)
from hermes_nb.safety.visible import readable, visible

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
    folds = folds_close(prose)
    blocks: list[str] = []
    for part in parts:
        if part.language is None:
            blocks += [_prose(part.lines, folds=folds)] if part.lines else []
        else:
            blocks.append(_fenced(part))
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
    return MARKS.sub(_mark, html.escape(visible(text, lines=True)))


def _mark(match: re.Match[str]) -> str:
    apart = {"$": DOLLAR, "\\": BACKSLASH, "\n": "<br>"}
    return apart.get(match[0]) or f"&#{ord(match[0])};"


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


def _fenced(part: _Part) -> str:
    code, language = "\n".join(part.lines), part.language or ""
    if language.lower() == "mermaid" and DIAGRAM.search(code):
        language = "text"
    return code_block(code, language)


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
    tags = kept_tags(whole, folds=folds)
    spans = [_spans(line) for line in lines]
    if any(span is None for span in spans):
        return clean(whole, tags=tags, lone=lone)
    as_html = begins_html(whole)
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
