"""Markdown that is safe to show as our own output.

A notebook renders what a kernel sends as trusted: raw HTML in a model's answer would run. So every
tag is shown instead of obeyed, a remote picture becomes a link (loading it would tell its server
who reads), and a link keeps only schemes that cannot execute. Code is left alone where every
Markdown parser agrees that it is code; where they might not, safety wins over looks.
"""

from __future__ import annotations

import html
import re

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
TAG_START = re.compile(r"<(?=[A-Za-z/!?])")
IMAGE = re.compile(r"!(?=\[)")
TARGET = re.compile(r"(\]\(\s*<?|^\s{0,3}\[[^\]]+\]:\s*<?)([^\s)>]*)", re.MULTILINE)
TICKS = re.compile(r"`+")
MARKS = re.compile(r"[\\`*\[\]!~|$]|(?<!\w)_|_(?!\w)")
"""What Markdown could take for markup; an underscore inside a word is not."""
SAFE_SCHEMES = ("http", "https", "mailto")


def safe_markdown(text: str) -> str:
    """Return `text` with HTML shown as text, pictures as links and only harmless link targets."""
    out: list[str] = []
    prose: list[str] = []
    fence = ""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        opening = FENCE.match(line)
        if fence:
            out.append(line)
            if opening and opening[1].startswith(fence) and not opening[2].strip():
                fence = ""
        elif opening and "`" not in opening[2]:
            out += _prose(prose)
            prose = []
            fence = opening[1]
            # A blank line before and no indentation: then every parser opens the block here.
            out += ["", opening[1] + TAG_START.sub("&lt;", opening[2])]
        else:
            prose.append(line)
    out += _prose(prose)
    if fence:
        out.append(fence)
    return "\n".join(out).strip("\n")


def code_block(text: str, language: str = "") -> str:
    """Return a fenced block that holds `text` whatever backticks it contains."""
    longest = max((len(run) for run in TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code_span(text: str) -> str:
    """Return inline code for one line of text, safe inside a table and outside one."""
    flat = " ".join(text.split()) or " "
    longest = max((len(run) for run in TICKS.findall(flat)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{ticks}{pad}{flat}{pad}{ticks}"


def escape(text: str) -> str:
    """Return text for use between HTML tags inside Markdown: nothing in it is markup."""
    return MARKS.sub(lambda match: f"&#{ord(match[0])};", html.escape(text))


def _prose(lines: list[str]) -> list[str]:
    """Clean lines outside fences, block by block (a block ends at a blank line)."""
    out: list[str] = []
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
            continue
        out += _block(block)
        out.append(line)
        block = []
    return out[:-1]


def _block(lines: list[str]) -> list[str]:
    """Clean one block; its inline code counts only if each line closes what it opens."""
    spans = [_spans(line) for line in lines]
    if any(span is None for span in spans):
        return [_clean(line) for line in lines]
    return [_around(line, span or []) for line, span in zip(lines, spans, strict=True)]


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


def _around(line: str, spans: list[tuple[int, int]]) -> str:
    out: list[str] = []
    position = 0
    for start, end in spans:
        out += [_clean(line[position:start]), line[start:end]]
        position = end
    return "".join([*out, _clean(line[position:])])


def _clean(text: str) -> str:
    text = TAG_START.sub("&lt;", text)
    text = IMAGE.sub("", text)
    return TARGET.sub(_target, text)


def _target(match: re.Match[str]) -> str:
    plain = re.sub(r"[\x00-\x20\\]", "", html.unescape(html.unescape(match[2])))
    scheme, colon, _ = plain.partition(":")
    harmless = not colon or "/" in scheme or "#" in scheme or "?" in scheme
    if harmless or scheme.lower() in SAFE_SCHEMES:
        return match[0]
    return f"{match[1]}#"
