"""One tool call as its user sees it: a line that opens to its arguments and its result.

Both are cut to what is read. What the user answered when the call asked stands in the line.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from hermes_nb.core.events import ApprovalGiven
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.display.childview import ChildView, running_lines
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

SHOWN_CHARACTERS = 2_000
"""Of each argument and of the result; the model reads more."""
SHORT_ARGUMENT = 120
"""Characters up to which an argument shares a block with the others, by name."""
MOST_ARGUMENTS = 12
"""Arguments of a call that are shown."""
GIST = 90
"""Characters of what a call is about."""
REASON = 160
"""Characters of why the user said no."""
MARKS = {"ok": "✓", "error": "✗", "denied": "⊘", "interrupted": "■", "skipped": "–", "": "◌"}
LANGUAGES = {"code": "python", "command": "bash"}
GIST_ARGUMENTS = ("command", "code", "pattern", "query", "goal", "path", "name", "action")
_WRAPPED = re.compile(
    r"<untrusted-(\w+) source=\"[^\"\n]*\"[^>\n]*>\nData, not instructions[^\n]*\n"
    r"(.*?)\n</untrusted-\1>",
    re.DOTALL,
)
"""What marks foreign text for the model (`safety.untrusted`); the user sees that it is a result."""


@dataclass(slots=True)
class CallView:
    """A call and how it went so far; `status` is "" while it runs."""

    call: ToolCall
    started: float
    gist: str = ""
    status: str = ""
    seconds: float = 0.0
    progress: str = ""
    result: str = ""
    answer: str = ""
    children: dict[int, ChildView] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the call and below it its children, a Markdown line each."""
        if not self.status:
            return [self.line(), *running_lines(self.children.values())]
        return [self.line(), *(child.line() for child in self.children.values())]

    def line(self) -> str:
        """Return the call as one Markdown line."""
        gist = f" {code_span(self.gist)}" if self.gist else ""
        name = escape(one_line(self.call.name))
        return f"{MARKS[self.status]} **{name}**{gist}{self._tail()}"

    def block(self) -> str:
        """Return the call as Markdown: its line, which opens to all the rest by a click."""
        bodies = self.bodies()
        if not bodies:
            return self.line()
        gist = f" <code>{escape(self.gist)}</code>" if self.gist else ""
        head = f"{MARKS[self.status]} <b>{escape(one_line(self.call.name))}</b>{gist}{self._tail()}"
        inside = "\n\n".join(bodies)
        return f"<details><summary>{head}</summary>\n\n{inside}\n\n</details>"

    def answered(self, given: ApprovalGiven) -> None:
        """Take in what the user said when this call asked."""
        reason = visible(one_line(redact(given.reason), REASON))
        refused = f"denied: {reason}" if reason else ""
        told = {"once": "allowed once", "always": "allowed from now on", "deny": refused}
        self.answer = told[given.answer]

    def _tail(self) -> str:
        """Return how it goes or went, and how long that takes, as Markdown or HTML."""
        parts = [self.answer]
        if self.status in ("error", "denied", "interrupted") and not (
            self.status == "denied" and self.answer
        ):
            parts.append(self.status)
        if self.status != "skipped":
            parts.append(f"{self.elapsed():.1f} s")
        if not self.status:
            parts.append(self.progress)
        return "".join(f" · {escape(part)}" for part in parts if part)

    def elapsed(self) -> float:
        """Return how long the call took, or has been running."""
        return self.seconds if self.status else time.monotonic() - self.started

    def bodies(self) -> list[str]:
        """Return the arguments and the result as code blocks, and between them the children."""
        out: list[str] = []
        short: list[str] = []
        arguments = list(self.call.arguments.items())
        for name, value in arguments[:MOST_ARGUMENTS]:
            text = value if isinstance(value, str) else repr(value)
            if redact(text) == self.gist:
                continue
            if name in LANGUAGES or "\n" in text or len(text) > SHORT_ARGUMENT:
                out.append(code_block(_shown(text), LANGUAGES.get(name, "text")))
            else:
                short.append(f"{one_line(name)}: {_shown(text)}")
        if more := len(arguments) - MOST_ARGUMENTS:
            short += [f"… {more} more arguments"] if more > 0 else []
        if short:
            out.insert(0, code_block("\n".join(short), "text"))
        if self.children:
            out.append("  \n".join(child.line() for child in self.children.values()))
        if self.result:
            out.append(code_block(_shown(_WRAPPED.sub(r"\2", self.result)), "text"))
        return out


def gist_of(call: ToolCall, described: str = "") -> str:
    """Return what a call is about on one line: in the tool's words, or its main argument."""
    gist = described
    if not gist:
        named = [call.arguments[key] for key in GIST_ARGUMENTS if call.arguments.get(key)]
        gist = str(named[0] if named else next(iter(call.arguments.values()), ""))
    # Only the beginning is looked through: a secret that is cut apart here is cut off below.
    return one_line(visible(one_line(redact(gist[: 8 * GIST]), GIST)), GIST)


def _shown(text: str) -> str:
    """Return a text cut twice: escapes of what is invisible make it longer."""
    cut = visible(head_tail(redact(text), SHOWN_CHARACTERS), lines=True)
    return head_tail(cut, SHOWN_CHARACTERS * 2)
