"""Questions about risky calls on the terminal that a prompt is run from."""

from __future__ import annotations

import sys

from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.notebook.approval import answer_of, question_line
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

NOBODY = (
    "nobody can be asked here, so it was not run; "
    "`jupyter hermes run --approve all` allows such calls"
)


class TerminalApprover:
    """Asks on standard error, so that standard output has the answer alone; refuses elsewhere."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer; anything but yes or always is a refusal and its reason."""
        if not sys.stdin.isatty():
            return Approval("deny", NOBODY)
        shown = visible(redact(request.shown), lines=True)
        title = f"\nHermes wants to use {request.tool.name} ({visible(request.why)}):\n{shown}\n"
        answer = ask_on_terminal(title + question_line(request))
        return answer_of(answer, request) if answer else Approval("deny", NOBODY)


def ask_on_terminal(question: str) -> str:
    """Return the line that the user types, "" where the input has ended."""
    print(question, end="", file=sys.stderr, flush=True)
    with user_code():  # Ctrl-C has to end the wait
        return sys.stdin.readline()
