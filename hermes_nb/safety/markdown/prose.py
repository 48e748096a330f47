"""Running text of Markdown, cleaned sign by sign: tags, entities, pictures, links and formulas.

One expression finds whatever a parser could obey; each finding is judged on its own, so that no
text is read twice and none of the replacements can be read again.
"""

from __future__ import annotations

import html
import re

from hermes_nb.safety.markdown.formulas import (
    BACKSLASH,
    DOLLAR,
    FORMULA,
    ORDERS,
    environment,
    inert,
    typeset,
)
from hermes_nb.safety.markdown.tags import bare
from hermes_nb.safety.markdown.targets import is_local, link_target

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
            formula = typeset(text[token.start() : end], "") if end >= 0 else None
            out.append(formula or BACKSLASH + token["begin"][1:])
            at = end if formula else at
        elif mark := _FORMULAS.get(kind):
            formula = typeset(token[kind], mark) or inert(token[0])
            touching = any(out) and next(filter(None, reversed(out))).endswith("$")
            out.append(f" {formula}" if touching else formula)
        elif token["opening"]:
            out.append(_link(token))
        elif token["image"] is not None:
            out.append(_picture(token))
            at = token.start("image")
        elif token["tag"]:
            stays = bare(token["tag"], tags)
            out.append(token["tag"] if stays else "&lt;")
            at = at if stays else token.start() + 1
        else:
            out.append(_sign(token, lone=lone))
    return "".join([*out, text[at:]])


def _link(token: re.Match[str]) -> str:
    """Return the beginning of a link's target, or of a definition of one."""
    before = token["opening"] + token["gap"]
    if token["target"] is not None:
        return before + link_target(token["target"])
    if token["angle"] and token["opening"] == "](":
        return before + link_target(token["angle"].replace(" ", "%20"))
    return f"{before}&lt;{html.escape(token['angle'] or '')}"


def _picture(token: re.Match[str]) -> str:
    """Return the sign that makes a link a picture, or nothing."""
    return "!" if token["source"] and is_local(token["source"]) else ""


def _sign(token: re.Match[str], *, lone: bool) -> str:
    """Return a sign that means something by itself as what it is."""
    if token["dollar"]:
        return "$" if lone else DOLLAR
    if token["address"]:
        return link_target(token["address"])
    if token["entity"]:
        telling = _TELLING.search(html.unescape(token[0]))
        return f"&amp;{token[0][1:]}" if telling else token[0]
    if token["pair"]:
        return _pair(token[0], lone=lone)
    return BACKSLASH + token[0][1:]


def _pair(escaped: str, *, lone: bool) -> str:
    r"""Return a backslash or a dollar that was escaped: `\\` and `\$` begin formulas too."""
    if escaped == r"\$":
        return escaped if lone else DOLLAR
    return BACKSLASH
