"""Puts the guard's questions to the client. Anything but an approval is a denial."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from acp import Client, RequestError, schema, text_block, tool_content

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Toolset
from hermes_nb.extras.acp.updates import TITLE, Content, kind_of, title_of
from hermes_nb.safety.markup import code_block
from hermes_nb.safety.redact import redact

ONCE = schema.PermissionOption(option_id="once", name="Allow", kind="allow_once")
OUTSIDE = schema.PermissionOption(
    option_id="outside", name="Allow without the sandbox", kind="allow_once"
)
DENY = schema.PermissionOption(option_id="deny", name="Deny", kind="reject_once")
NO_CHOICES = "this client cannot show choices; ask in your answer"
NO_ANSWER = "the client did not answer the question"


class Asker:
    """The approver of a session.

    A question has no time limit. If the client leaves, or its answer is not one of the options, the
    call is denied.

    Args:
        client: the connection
        session: returns the session's id, as the client knows it
        sent: waits until the client has all updates so far
        edit: returns the diff of a call, or None
    """

    def __init__(
        self,
        client: Client,
        session: Callable[[], str],
        *,
        sent: Callable[[], Awaitable[None]],
        edit: Callable[[ToolCall], schema.FileEditToolCallContent | None],
    ) -> None:
        self._client, self._session, self._sent, self._edit = client, session, sent, edit

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer."""
        if request.choices is not None:
            return Approval("deny", NO_CHOICES)
        options = _options(request)
        await self._sent()
        try:
            reply = await self._client.request_permission(
                session_id=self._session(), tool_call=self._shown(request), options=options
            )
        except (ConnectionError, RequestError, ValueError):
            return Approval("deny", NO_ANSWER)
        outcome = reply.outcome
        if not isinstance(outcome, schema.AllowedOutcome):
            return Approval("deny")
        match outcome.option_id:
            case "once":
                return Approval("once")
            case "always" if request.shape:
                return Approval("always")
            case "outside" if request.outside:
                return Approval("outside")
            case _:
                return Approval("deny")

    def _shown(self, request: ApprovalRequest) -> schema.ToolCallUpdate:
        edit = self._edit(request.call) if len(request.calls) <= 1 else None
        shown: list[Content] = [edit] if edit is not None else []
        why = visible(redact(request.why), lines=True)
        # A diff may hide invisible characters and secrets, which the text shows.
        if edit is None or visible(edit.new_text, lines=True) != edit.new_text:
            why = f"{why}\n\n{code_block(redact(request.shown))}"
        return schema.ToolCallUpdate(
            tool_call_id=request.call.id,
            title=title_of(Toolset([request.tool]), request.call),
            kind=kind_of(request.tool),
            status="pending",
            content=[*shown, tool_content(text_block(why))],
        )


def _options(request: ApprovalRequest) -> list[schema.PermissionOption]:
    options = [ONCE]
    if request.shape:
        what = request.lasting.replace("this kernel ends", "this session ends")
        name = one_line(f"Always allow {what}", TITLE)
        options.append(schema.PermissionOption(option_id="always", name=name, kind="allow_always"))
    if request.outside:
        options.append(OUTSIDE)
    return [*options, DENY]
