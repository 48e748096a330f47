"""Asks the user before a call runs: buttons where a page answers, else `input()`, else the policy.

The page draws the box, from texts that it never takes for HTML, and a page that is reloaded draws
it again. What stays in the notebook is the answer, in the line of the call (`callview`).
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Risk
from hermes_nb.notebook.bridge.frontend import FrontEnd
from hermes_nb.notebook.display.showing import can_draw, show
from hermes_nb.notebook.display.view import can_ask, has_kernel
from hermes_nb.notebook.document.known import running_cell
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.safety.markup import code_block, escape
from hermes_nb.safety.visible import visible

NOBODY = (
    "nobody can be asked here, so it was not run; "
    "`%hermes approve all` or HERMES_NB_APPROVE=all allows such calls"
)
LEFT = (
    "the notebook's page was closed during this turn and nobody could be asked; say what you "
    "wanted to do, so that the user can ask again"
)
ABSENT = 600.0
"""Seconds that a question waits for its page to come back: the laptop may have been closed."""


class CellApprover:
    """Asks below the cell, or refuses where no one can answer."""

    def __init__(self, shell: Any, frontend: FrontEnd | None = None) -> None:  # noqa: ANN401 - IPython
        self._shell = shell
        self._frontend = frontend or FrontEnd(shell)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer; anything but yes or always is a refusal and its reason."""
        if not can_ask(self._shell):
            return Approval("deny", NOBODY)
        if await self._frontend.present() is not None:
            return await self._ask_in_page(request)
        if self._frontend.expected and not self._frontend.problem:
            # A line to type in would wait in a page that is gone.
            return Approval("deny", LEFT)
        self._show(request)
        answer = ask_user(question_line(request))
        return Approval("deny", NOBODY) if answer is None else answer_of(answer, request)

    async def _ask_in_page(self, request: ApprovalRequest) -> Approval:
        """Have the page ask; a cancellation closes the box too."""
        question = _question(request) | {"cell": running_cell(self._shell)}
        given = await self._frontend.hold("ask", ABSENT, **question)
        return Approval("deny", LEFT) if given is None else _chosen(given, request)

    def _show(self, request: ApprovalRequest) -> None:
        title = f"Hermes wants to use {request.tool.name}"
        language = {"terminal": "bash", "run_python": "python"}.get(request.tool.name, "text")
        if request.tool.risk is Risk.WRITE:
            language = "diff"
        block = code_block(request.shown, language)
        markdown = f"**{escape(title)}** · {escape(request.why)}\n\n{block}{_scope(request)}"
        plain = _plain(title, request)
        if has_kernel(self._shell) or can_draw(sys.stdout):
            show({"text/markdown": markdown, "text/plain": plain})
        else:
            print(plain, flush=True)  # noqa: T201 - a terminal's way to ask


def ask_user(question: str, read: Callable[[str], str] | None = None) -> str | None:
    """Return what the user types, None where the input has ended.

    It blocks the event loop, as a question is meant to; the stop button still raises
    KeyboardInterrupt in it.
    """
    with user_code():
        try:
            return (read or input)(question).strip()
        except EOFError:
            return None


def _plain(title: str, request: ApprovalRequest) -> str:
    scope = _scope(request)
    return visible(f"{title} ({request.why}):\n{request.shown}{scope}", lines=True)


def _scope(request: ApprovalRequest) -> str:
    """Return a line that says what "always" would cover."""
    lasts = request.lasting
    return f"\n\nAlways: {escape(lasts)}." if request.shape and lasts else ""


def question_line(request: ApprovalRequest) -> str:
    """Return the line behind which an answer is typed."""
    always = "[a]lways, " if request.shape else ""
    outside = "[o]utside the sandbox, " if request.outside else ""
    return f"Run it? [y]es, {always}{outside}[n]o, or say why not: "


def answer_of(typed: str, request: ApprovalRequest) -> Approval:
    """Return what was typed as an answer; whatever is no yes that was offered is a no."""
    answer = typed.strip()
    word = answer.lower()
    if word in ("y", "yes"):
        return Approval("once")
    if request.shape and word in ("a", "always"):
        return Approval("always")
    if request.outside and word in ("o", "outside"):
        return Approval("outside")
    reason = "" if word in ("", "n", "no") else answer
    return Approval("deny", reason)


def _chosen(given: Mapping[str, Any], request: ApprovalRequest) -> Approval:
    """Return the answer that a page sent; whatever is not plainly a yes is a no."""
    match given.get("answer"):
        case "once":
            return Approval("once")
        case "always" if request.shape:
            return Approval("always")
        case "outside" if request.outside:
            return Approval("outside")
        case _:
            return Approval("deny", str(given.get("reason") or ""))


def _question(request: ApprovalRequest) -> dict[str, Any]:
    """Return the box as the page draws it: plain texts, `lines` with their CSS classes."""
    tool = request.tool
    wish = {"terminal": "run a command", "run_python": "run code"}.get(tool.name, "")
    if not wish:
        wish = {"files": "change files", "notebook": "change this notebook"}.get(tool.toolset, "")
    if tool.risk not in (Risk.WRITE, Risk.EXECUTE) or not wish:
        wish = f"use {tool.name}"
    lines = visible(request.shown, lines=True).split("\n")
    diff = tool.risk is Risk.WRITE and any(line[:1] in ("+", "-") for line in lines)
    once, always = _labels(request)
    return {
        "id": uuid.uuid4().hex,
        "title": f"Hermes wants to {visible(one_line(wish))}",
        "tool": visible(tool.name),
        "lines": [[_colour(line) if diff else "", line] for line in lines],
        "why": f"Asks because {visible(request.why, lines=True)}.",
        "once": once,
        "always": always,
        "tip": visible(request.lasting),
        "outside": "Outside the sandbox" if request.outside else "",
    }


def _colour(line: str) -> str:
    """Return the CSS class of a diff's line."""
    if line.startswith(("--- ", "+++ ")):
        return ""
    return {"+": "hermes-add", "-": "hermes-del"}.get(line[:1], "")


def _labels(request: ApprovalRequest) -> tuple[str, str]:
    """Return what the buttons for "once" and "always" say."""
    once = {Risk.WRITE: "Apply", Risk.EXECUTE: "Run once"}.get(request.tool.risk, "Allow once")
    return request.yes or once, "Always" if request.shape else ""
