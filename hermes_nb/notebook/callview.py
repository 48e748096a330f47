"""One tool call as its user sees it: a line, and its arguments and result, cut to what is read."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from hermes_nb.core.messages import ToolCall
from hermes_nb.core.text import head_tail, one_line
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
MARKS = {"ok": "✓", "error": "✗", "denied": "⊘", "interrupted": "■", "skipped": "–", "": "◌"}
LANGUAGES = {"code": "python", "command": "bash"}
GIST_ARGUMENTS = ("command", "code", "path", "name", "pattern", "query", "goal", "action")
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

    def line(self) -> str:
        """Return the call as one Markdown line."""
        gist = f" {code_span(self.gist)}" if self.gist else ""
        if self.status in ("error", "denied", "interrupted"):
            gist += f" · {self.status}"
        if self.status != "skipped":
            gist += f" · {self.elapsed():.1f} s"
        tail = f" · {escape(self.progress)}" if self.progress and not self.status else ""
        return f"{MARKS[self.status]} **{escape(one_line(self.call.name))}**{gist}{tail}"

    def elapsed(self) -> float:
        """Return how long the call took, or has been running."""
        return self.seconds if self.status else time.monotonic() - self.started

    def bodies(self) -> list[str]:
        """Return the arguments and the result as code blocks."""
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
