"""Asking the user before a call runs: `input()` where somebody can answer, else the policy."""

from __future__ import annotations

from typing import Any

from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.view import can_ask, has_kernel
from hermes_nb.safety.markup import code_block

NOBODY = (
    "nobody can be asked here, so it was not run; "
    "`%hermes approve all` or HERMES_NB_APPROVE=all allows such calls"
)
QUESTION = "Run it? [y]es, [a]lways here, [n]o, or say why not: "


class CellApprover:
    """Asks below the cell, or refuses where no one can answer."""

    def __init__(self, shell: Any) -> None:  # noqa: ANN401 - IPython's shell
        self._shell = shell

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer; anything but yes or always is a refusal and its reason."""
        if not can_ask(self._shell):
            return Approval("deny", NOBODY)
        self._show(request)
        answer = ask_user(QUESTION)
        return Approval("deny", NOBODY) if answer is None else _parse(answer)

    def _show(self, request: ApprovalRequest) -> None:
        title = f"Hermes wants to use {request.tool.name}"
        if has_kernel(self._shell):
            from IPython.display import display

            language = {"terminal": "bash", "run_python": "python"}.get(request.tool.name, "text")
            block = code_block(request.shown, language)
            markdown = f"**{title}** · {request.why}\n\n{block}"
            display({"text/markdown": markdown, "text/plain": _plain(title, request)}, raw=True)
        else:
            print(_plain(title, request), flush=True)  # noqa: T201 - a terminal's way to ask


def ask_user(question: str) -> str | None:
    """Return what the user types, None where the input has ended.

    It blocks the event loop, as a question is meant to; the stop button still raises
    KeyboardInterrupt in it.
    """
    with user_code():
        try:
            return input(question).strip()
        except EOFError:
            return None


def _plain(title: str, request: ApprovalRequest) -> str:
    return f"{title} ({request.why}):\n{request.shown}"


def _parse(answer: str) -> Approval:
    word = answer.lower()
    if word in ("y", "yes"):
        return Approval("once")
    if word in ("a", "always"):
        return Approval("always")
    reason = "" if word in ("", "n", "no") else answer
    return Approval("deny", reason)
