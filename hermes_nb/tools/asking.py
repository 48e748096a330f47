"""Ask for approval before calls that do more than read.

An approval is bound to the content that the user saw. Everything that the call refers to (files,
scripts, notebooks, cells) is read before the question and again after the answer, right before the
call runs. If something has changed, the user is asked again; if it keeps changing, the call is
refused. "Always" is remembered for the content of the approved question.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath

from hermes_nb.core.errors import ToolDenied
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import Answer, ApprovalAsked, ApprovalGiven
from hermes_nb.core.protocols import Approval, ApprovalRequest, Approver
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import (
    Arguments,
    Content,
    Question,
    Tool,
    ToolContext,
    Toolset,
    foreseen,
)
from hermes_nb.safety.guard import Decision, Guard, look
from hermes_nb.safety.permissions import SandboxProfile

ROUNDS = 3
"""Maximum number of times to ask the user while the call's content keeps changing."""
ABSENT = "no one was available to answer"
_NAMED = 3
"""Maximum number of changed items that a question lists by name."""


def asking(toolset: Toolset, guard: Guard, approver: Approver) -> Toolset:
    """Wrap a toolset so that the guard decides on every call that does more than read.

    The guard allows the call, denies it, or asks the approver. A call that may need approval never
    runs in parallel with others. The tool's context specifies how it may run (see `guard.Way`), and
    lets it ask further questions. A denied call raises `ToolDenied`.
    """

    def ask(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            call = _GuardedCall(tool, context, arguments, guard, approver)
            way = await call.permitted()
            permitted = replace(context, permit=way, ask=call.further, remember=call.remember)
            return await tool.run(permitted, arguments)

        return replace(tool, run=run, asks=partial(guard.may_ask, tool))

    return toolset.map(lambda tool: ask(tool) if guard.watches(tool) else tool)


@dataclass(slots=True)
class _GuardedCall:
    """One call and its *shape*: the key that stores an "always" answer for similar calls."""

    tool: Tool
    context: ToolContext
    arguments: Arguments
    guard: Guard
    approver: Approver
    shape: str = ""
    """Shape for the last content displayed. Empty if "always" cannot be remembered."""

    async def permitted(self) -> object:
        """Return how the call may run, after asking if necessary; raise ToolDenied."""
        changed: list[str] = []
        for _ in range(ROUNDS):
            content = await in_thread(look, self.tool, self.arguments)
            decision = await self._decision(content)
            self.shape = decision.shape
            if decision.verdict == "deny":
                raise ToolDenied(_refusal(self.tool, decision.why))
            if decision.verdict == "allow":
                return decision.way
            approval, changed = await self._asked(_question(decision), content, changed)
            if not changed:
                return self._way(decision, approval)
        raise ToolDenied(_refusal(self.tool, _unstable(changed)))

    async def _decision(self, content: Content) -> Decision:
        """Return the guard's decision about the call with its current content."""
        tool, arguments, messages = self.tool, self.arguments, self.context.messages
        left = None
        if tool.result is not None:
            left = await foreseen(tool.result, self.context, arguments)
        judge = partial(self.guard.decide, messages=messages, result=left, content=content)
        return await in_thread(judge, tool, arguments)

    async def further(self, question: Question) -> Answer:
        """Ask the user a question on behalf of a running tool.

        With `question.again`, the answer only applies to the call's current content, so the user is
        asked again if that changes.
        """
        if not self.guard.asks:
            return "deny"
        if not question.again:
            return (await put_question(self.tool, self.context, question, self.approver)).answer
        changed: list[str] = []
        for _ in range(ROUNDS):
            content = await in_thread(look, self.tool, self.arguments)
            self.shape = self.guard.shape(self.tool, self.arguments, content)
            approval, changed = await self._asked(question, content, changed)
            if not changed:
                return approval.answer
        raise ToolDenied(_refusal(self.tool, _unstable(changed)))

    def remember(self, way: object) -> None:
        """From now on, let similar calls run this way without asking."""
        self.guard.remember(self.shape, way)

    async def _asked(
        self, question: Question, content: Content, changed: list[str]
    ) -> tuple[Approval, list[str]]:
        """Ask about the content; return the approval and the names of items changed since."""
        before = await self._previewed(content)
        self.shape = self.shape if before.whole else ""
        if changed:
            question = replace(question, why=f"{_names(changed)} has changed. {question.why}")
        question = replace(question, shown=before.shown, shape=self.shape)
        approval = await put_question(self.tool, self.context, question, self.approver)
        if approval.answer == "deny":
            return approval, []
        now = await in_thread(look, self.tool, self.arguments)
        self.shape = "" if content.changes(now) else self.shape
        return approval, before.changes(await self._previewed(now))

    async def _previewed(self, content: Content) -> Content:
        """Return the content to display: the tool's own preview, if it has one."""
        if self.tool.preview is None:
            return content
        seen = await foreseen(self.tool.preview, self.context, self.arguments)
        if isinstance(seen, str):
            digest = hashlib.sha256(seen.encode("utf-8", "surrogatepass")).hexdigest()
            seen = Content(shown=seen, digests={"what it would change": digest})
        whole = seen.whole and content.whole
        return replace(seen, shown=visible(seen.shown, lines=True), whole=whole)

    def _way(self, decision: Decision, approval: Approval) -> object:
        """Return how an approved call runs; raise ToolDenied if it was denied."""
        way = decision.way
        if approval.answer == "deny":
            why = f"the user declined: {approval.reason}".rstrip(": ")
            raise ToolDenied(_refusal(self.tool, why))
        if approval.answer == "outside" and way is not None:
            return replace(way, profile=SandboxProfile.OUTSIDE, watched=False)
        if approval.answer == "always":
            self.remember(way)
        return way


def _question(decision: Decision) -> Question:
    """Return the question about a call: the reason, and how the call would run."""
    way, why, confined, closed = decision.way, decision.why, False, ""
    if way is not None and not way.offline:  # no sandbox confines code in the kernel
        confined, closed = SandboxProfile.OUTSIDE not in way.profile, way.closed
        why = f"{why}. It would run {way.profile.words}"
    return Question(
        why=why,
        shown=decision.shown,
        lasting=decision.lasting,
        outside=confined and not closed,
        in_every_mode=decision.in_every_mode,
    )


async def put_question(
    tool: Tool, context: ToolContext, question: Question, approver: Approver
) -> Approval:
    """Emit the question as an event, ask the approver, and emit the answer."""
    call = context.call
    context.emit(ApprovalAsked(call, question.why, question.shown))
    await asyncio.sleep(0)  # lets the event be delivered before the question blocks the loop
    approval = await approver.ask(
        ApprovalRequest(
            call=call,
            tool=tool,
            why=question.why,
            shown=question.shown,
            shape=question.shape,
            lasting=question.lasting,
            outside=question.outside,
            yes=question.yes,
            choices=question.choices,
            in_every_mode=question.in_every_mode,
        )
    )
    if question.choices is not None and approval.answer == "deny" and approval.reason:
        approval = replace(approval, reason=ABSENT)  # an automatic approval has no answer to give
    context.emit(ApprovalGiven(call.id, approval.answer, approval.reason))
    return approval


def _names(changed: list[str]) -> str:
    """Return a short list of the changed items."""
    names = [visible(PurePath(name).name) for name in changed[:_NAMED]]
    more = [f"{len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    return " and ".join(filter(None, [", ".join(names), *more]))


def _unstable(changed: list[str]) -> str:
    return f"{_names(changed)} changed each time while the question was open"


def _refusal(tool: Tool, why: str) -> str:
    return (
        f"{tool.name} was not run: {why}. Do not try the same thing in another way; continue "
        "without it"
    )
