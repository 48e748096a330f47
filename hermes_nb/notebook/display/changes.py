"""Render a turn's changes: a line that opens to a diff, and `%hermes diff`.

The line is plain text everywhere. In a notebook page the diff has theme colours and highlighted
words. Elsewhere each line has a mark, `+` or `-`. Unchanged lines far from any change are omitted.
A notebook saves everything that its cells display, so the size is limited; `%hermes diff` shows
more.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import groupby

from hermes_nb.agent.undo.changes import Change, DiffRow, rows, sizes, summary
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import number_of, one_line
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact

ROOM = 12_000
"""Maximum characters of a diff that a finished turn displays."""
VARIABLES = 6
"""Maximum number of variables to list."""
DIFF = "Changes of this turn"
"""Title of the diff, as in labextension/static/changes.js."""
DECIDE = ("%hermes keep", "%hermes drop")
"""The commands about the code of a turn with `--what-if`."""
_LINE = 300
"""Maximum characters of a diff line."""
_WHOLE_LINE = "display:inline-block;min-width:100%;"
_GREEN, _RED = "var(--jp-success-color1,#2ea043)", "var(--jp-error-color1,#f85149)"
_COLOURS = {"+": _GREEN, "-": _RED}
_TAGS = {"+": "ins", "-": "del"}


def line(changes: Sequence[Change], learned: int = 0) -> str:
    """Return the changes as one line of plain text; `learned` is the number of saved notes."""
    parts = [one_line(visible(redact(part)), _LINE) for part in summary(changes)]
    return " · ".join([*parts, *([f"{number_of(learned, 'note')} learned"] if learned else [])])


def variables_line(variables: Sequence[str]) -> str:
    """Return the changed variables as one line of plain text; "" without any.

    The mark at its beginning lets comparisons of notebooks leave the line out.
    """
    parts = [one_line(visible(redact(each)), _LINE) for each in variables[:VARIABLES]]
    if len(variables) > VARIABLES:
        parts.append(f"{len(variables) - VARIABLES} more variables")
    return f"± {' · '.join(parts)}" if parts else ""


def what_if_line(variables: Sequence[str]) -> str:
    """Return what a turn changed in the copy as one line of plain text."""
    told = variables_line(variables) or "± no variable"
    return f"{told} (only in a copy)"


def stale_line(stale: Sequence[str]) -> str:
    """Return a line that names the cells that a turn made stale; "" without any."""
    if not stale:
        return ""
    named = ", ".join(stale[:VARIABLES])
    more = f" and {len(stale) - VARIABLES} more" if stale[VARIABLES:] else ""
    return f"↻ stale now: {named}{more} · %hermes stale"


def ways_back(changes: Sequence[Change], learned: int, turn: int) -> list[str]:
    """Return the commands that undo the changes."""
    undo = [f"%hermes undo {turn}"] if changes else []
    return [*undo, *(["%hermes memory undo"] if learned else [])]


def folded(
    changes: Sequence[Change],
    learned: int,
    turn: int,
    session: str,
    *,
    page: bool,
    buttons: bool = False,
) -> str:
    """Return the line as Markdown, which opens to the diff; "" without changes.

    Args:
        changes: the turn's changes.
        learned: number of notes saved by the turn.
        turn: number of the turn.
        session: id of its session, for the first command's tooltip. The tooltip allows
            `%hermes undo TURN of SESSION` when another session is active.
        page: true to use HTML with colours, for display in a notebook page.
        buttons: true if the page has buttons to undo the changes, so that no command is needed.
    """
    told = line(changes, learned)
    if not told:
        return ""
    back = [f"<code>{each}</code>" for each in ways_back(changes, learned, turn)]
    if page and changes and session:
        back[0] = clickable(turn, session)
    head = " · ".join([escape(told), *([] if buttons else back)])
    body = as_markdown(changes, ROOM, page=page)
    if not body:
        return head
    title = f' title="{DIFF}"' if buttons else ""  # the page finds it by this title
    return f"<details{title}><summary>{head}</summary>\n\n{body}\n\n</details>"


def clickable(turn: int, session: str) -> str:
    """Return the command that undoes a turn, as HTML that the page runs on a click."""
    title = html.escape(f"turn {turn} of {session}")
    return f'<code title="{title}">%hermes undo {turn}</code>'


def as_markdown(changes: Sequence[Change], room: int, *, page: bool = False) -> str:
    """Return the diffs as Markdown of about `room` characters, each under its title."""
    blocks: list[str] = []
    for change in changes:
        shown, room = _fitting_rows(_clean(rows(change)), room)
        differences = f"<pre>{_html(shown)}</pre>" if page else code_block(_text(shown), "diff")
        blocks += [_title(change), *([differences] if shown else [])]
        if room <= 0:
            blocks.append("… `%hermes diff` shows the rest.")
            break
    return "\n\n".join(blocks) if any(change.before or change.after for change in changes) else ""


def diff_bundle(changes: Sequence[Change], room: int) -> dict[str, str]:
    """Return the diffs as a MIME bundle of about `room` characters."""
    pages: list[str] = []
    plain: list[str] = []
    left = room
    for change in changes:
        if left <= 0:
            pages.append("…")
            plain.append("…")
            break
        shown, left = _fitting_rows(_clean(rows(change)), left)
        named = [part for part in _naming(change) if part]
        first, *rest = (html.escape(part) for part in named)
        pages.append(f"<b>{first}</b> {' '.join(rest)}")
        plain.append(" ".join(named))
        if shown:
            pages.append(f'<pre style="white-space:pre;overflow-x:auto">{_html(shown)}</pre>')
            plain.append(_text(shown))
    return {
        "text/html": "\n".join(pages),
        "text/markdown": as_markdown(changes, room),
        "text/plain": "\n".join(plain),
    }


def _naming(change: Change) -> tuple[str, str, str]:
    """Return a change's name and kind, and its first words or a note on why no diff exists."""
    words = change.note
    if change.notebook and not words:
        words = next((each for each in (change.after or change.before).split("\n") if each), "")
    added, removed = sizes(change)
    kind = change.kind
    text = f"{kind} +{added} −{removed}" if kind == "edited" and not change.note else kind
    name, words = (one_line(visible(redact(part)), 80) for part in (change.name, words))
    return name, text, words


def _title(change: Change) -> str:
    name, kind, words = _naming(change)
    text = escape(words) if change.note else code_span(words)
    return f"**{escape(name)}** {kind}{f' {text}' if words else ''}"


def _clean(found: Sequence[DiffRow]) -> list[DiffRow]:
    """Remove secrets and invisible characters from rows; redaction needs whole lines."""
    out = []
    for row in found:
        text = redact(row.text)
        words = row.words if text == row.text else ((text, False),)
        out.append(DiffRow(row.mark, tuple((visible(word), differs) for word, differs in words)))
    return out


def _fitting_rows(found: Sequence[DiffRow], room: int) -> tuple[list[DiffRow], int]:
    """Return the rows that fit, and the remaining space."""
    kept: list[DiffRow] = []
    for row in found:
        text = row.text
        room -= len(text[:_LINE]) + 3
        if room <= 0:
            break
        cut = len(text) > _LINE
        kept.append(DiffRow(row.mark, ((f"{text[:_LINE]} …", False),)) if cut else row)
    return kept, room


def _text(found: Sequence[DiffRow]) -> str:
    return "\n".join(f"{row.mark} {row.text}".rstrip() for row in found)


def _html(found: Sequence[DiffRow]) -> str:
    """Return rows for a `pre` element, with adjacent lines that have the same mark in one span."""
    blocks = []
    for mark, group in groupby(found, key=lambda row: row.mark):
        text = "\n".join(map(_row, group))
        style = _tint(_COLOURS[mark], 16) if mark in _COLOURS else "opacity:.65"
        blocks.append(text if mark == " " else f'<span style="{_WHOLE_LINE}{style}">{text}</span>')
    return "\n".join(blocks)


def _row(row: DiffRow) -> str:
    tag = _TAGS.get(row.mark)
    style = f"text-decoration:none;{_tint(_COLOURS[row.mark], 40)}" if tag else ""
    words = (
        f'<{tag} style="{style}">{escape(word)}</{tag}>' if differs else escape(word)
        for word, differs in row.words
    )
    return f"{row.mark} {''.join(words)}".rstrip()


def _tint(colour: str, percent: int) -> str:
    return f"background:color-mix(in srgb,{colour} {percent}%,transparent)"
