"""Ask for approval before calls that do more than read.

An approval is bound to the content that the user saw. Everything that the call refers to (files,
scripts, notebooks, cells) is read before the question and again after the answer, right before the
call runs. If something has changed, the user is asked again; if it keeps changing, the call is
refused. "Always" is remembered for the content of the approved question.

One answer can cover more than its call: later edits of the same reply, the run of the cell that the
call writes, or the tool's calls until the turn ends. The last ends when untrusted content comes in.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import PurePath

from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import Answer, ApprovalAsked, ApprovalGiven
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.protocols import Approval, ApprovalRequest, Approver
from hermes_nb.core.text import capitalised
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
from hermes_nb.safety.guard import Decision, Guard, Way, content_of
from hermes_nb.safety.permissions import SandboxProfile
from hermes_nb.safety.provenance import outside

ROUNDS = 3
"""Maximum number of times to ask the user while the call's content keeps changing."""
ABSENT = "no one was available to answer"
SESSIONS = 16
"""Maximum number of sessions whose answers cover later calls at the same time."""
_NAMED = 3
"""Maximum number of changed items that a question lists by name."""


def asking(toolset: Toolset, guard: Guard, approver: Approver) -> Toolset:
    """Wrap a toolset so that the guard decides on every call that does more than read.

    The guard allows the call, denies it, or asks the approver. A call that may need approval never
    runs in parallel with others. The tool's context specifies how it may run (see `guard.Way`), and
    lets it ask further questions. A denied call raises `ToolDenied`.
    """
    given = lru_cache(SESSIONS)(lambda _session: _Given())

    def ask(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            if tool.known is not None:
                output = await tool.known(context, arguments)
                if output is not None:
                    return output
            answers = given(context.place.session)
            call = _GuardedCall(tool, context, arguments, guard, approver, answers)
            way = await call.permitted()
            permitted = replace(context, permit=way, ask=call.further, remember=call.remember)
            return await tool.run(permitted, arguments)

        return replace(tool, run=run, asks=partial(guard.may_ask, tool))

    return toolset.map(lambda tool: ask(tool) if guard.watches(tool) else tool)


@dataclass(slots=True)
class _Given:
    """The answers that cover later calls of the same turn."""

    prompt: Message | None = None
    """The prompt of the turn in which the user allowed tools."""
    tools: set[tuple[str, str]] = field(default_factory=set)
    """The allowed tools, by name and shape."""
    reply: Message | None = None
    """The model's reply whose calls the user was asked about together."""
    calls: dict[str, tuple[Content, Approval]] = field(default_factory=dict)
    """The content shown for each of these calls that hasn't run, and the answer, by call id."""

    def allow(self, tool: Tool, shape: str, messages: Sequence[Message]) -> None:
        """Allow a tool's calls of this shape until the turn ends."""
        prompt = _last(messages, "user")
        if prompt is not self.prompt:
            self.prompt, self.tools = prompt, set()
        self.tools.add((tool.name, shape))

    def allows(self, tool: Tool, shape: str, messages: Sequence[Message]) -> bool:
        """Return whether the user allowed the call in this turn, without untrusted content."""
        same = self.prompt is not None and self.prompt is _last(messages, "user")
        return same and (tool.name, shape) in self.tools and not outside(messages)

    def take(self, context: ToolContext) -> tuple[Content, Approval] | None:
        """Return the answer to a question about several calls, once for each call."""
        if self.reply is None or self.reply is not _last(context.messages, "assistant"):
            return None
        return self.calls.pop(context.call.id, None)


def _last(messages: Sequence[Message], role: str) -> Message | None:
    return next((each for each in reversed(messages) if each.role == role), None)


@dataclass(slots=True)
class _GuardedCall:
    """One call and its *shape*: the key that stores an "always" answer for similar calls."""

    tool: Tool
    context: ToolContext
    arguments: Arguments
    guard: Guard
    approver: Approver
    given: _Given
    shape: str = ""
    """Shape for the last content displayed. Empty if "always" cannot be remembered."""
    code: str = ""
    """The code that the last question offered to run, once the call has written it; "" for none."""

    async def permitted(self) -> object:
        """Return how the call may run, after asking if necessary; raise ToolDenied."""
        changed: list[str] = []
        for _ in range(ROUNDS):
            content = await in_thread(content_of, self.tool, self.arguments)
            decision = await self.decision(content)
            self.shape = decision.shape
            if decision.verdict == "deny":
                raise ToolDenied(_refusal(self.tool, decision.why))
            if decision.verdict == "allow" or await self._is_given(decision, content):
                return decision.way
            question, others = await self._offered(decision, content)
            approval, changed = await self._asked(question, content, changed, others)
            if not changed:
                return self._way(decision, approval)
        raise ToolDenied(_refusal(self.tool, _unstable(changed)))

    async def decision(self, content: Content) -> Decision:
        """Return the guard's decision about the call with its current content."""
        tool, arguments, messages = self.tool, self.arguments, self.context.messages
        left = None
        if tool.result is not None:
            left = await foreseen(tool.result, self.context, arguments)
        judge = partial(self.guard.decide, messages=messages, result=left, content=content)
        return await in_thread(judge, tool, arguments)

    async def _is_given(self, decision: Decision, content: Content) -> bool:
        """Return whether an earlier answer in this turn covers the call; raise ToolDenied."""
        answered = self.given.take(self.context)
        if decision.in_every_mode:
            return False
        if decision.shape and self.given.allows(self.tool, decision.shape, self.context.messages):
            return True
        if answered is None:
            return False
        shown, approval = answered
        if approval.answer == "deny":
            self._way(decision, approval)
        if shown.changes(await self.previewed(content)):
            return False
        self.context.emit(ApprovalGiven(self.context.call.id, approval.answer, ""))
        return True

    async def _offered(
        self, decision: Decision, content: Content
    ) -> tuple[Question, dict[str, Content]]:
        """Return the question, and the contents of later calls that it also covers, by call id."""
        question, messages = _question(decision), self.context.messages
        if decision.in_every_mode:
            return question, {}
        turn = bool(decision.shape) and not self.tool.paths and self.tool.toolset != "terminal"
        question = replace(question, turn=turn and not outside(messages))
        others = await self._others(content) if self.tool.joint else {}
        if others:
            reply = _last(messages, "assistant")
            calls = (each for each in (reply.calls if reply else ()) if each.id in others)
            question = replace(question, calls=(self.context.call, *calls))
        runner = self._runner()
        return replace(question, runs=runner is not None and not others), others

    async def _others(self, content: Content) -> dict[str, Content]:
        """Return the contents of later calls of the same reply that need the same approval."""
        reply = _last(self.context.messages, "assistant")
        calls = list(reply.calls) if reply else []
        if self.context.call not in calls:
            return {}
        taken = {*(await self.previewed(content)).digests}
        found: dict[str, Content] = {}
        for call in calls[calls.index(self.context.call) + 1 :]:
            shown = await self._foreseen(call)
            if shown is not None and not taken & shown.digests.keys():
                found[call.id] = shown
                taken |= shown.digests.keys()
        return found

    async def _foreseen(self, call: ToolCall) -> Content | None:
        """Return the content of a later call if it is valid now and could share the question."""
        tool, arguments = self.tool, call.arguments
        if call.name != tool.name or call.problem or tool.check(arguments):
            return None
        later = replace(self, context=replace(self.context, call=call), arguments=arguments)
        try:
            content = await in_thread(content_of, tool, arguments)
            decision = await later.decision(content)
            shown = await later.previewed(content)
        except ToolError:
            return None
        asks = decision.verdict == "ask" and not decision.in_every_mode
        return shown if asks and shown.digests and shown.whole else None

    def _runner(self) -> Way | None:
        """Return how the cell that the call writes may run, or None if it may not."""
        names = (each for each in self.context.tools if each.name == self.tool.runner)
        if (tool := next(names, None)) is None:
            return None
        decision = self.guard.decide(tool, {}, messages=self.context.messages)
        return None if decision.verdict == "deny" else decision.way or Way()

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
            content = await in_thread(content_of, self.tool, self.arguments)
            self.shape = self.guard.shape(self.tool, self.arguments, content)
            approval, changed = await self._asked(question, content, changed)
            if not changed:
                return approval.answer
        raise ToolDenied(_refusal(self.tool, _unstable(changed)))

    def remember(self, way: object) -> None:
        """From now on, let similar calls run this way without asking."""
        self.guard.remember(self.shape, way)

    async def _asked(
        self,
        question: Question,
        content: Content,
        changed: list[str],
        others: Mapping[str, Content] | None = None,
    ) -> tuple[Approval, list[str]]:
        """Ask about the content, and that of `others`; return the answer and what changed since."""
        before = await self.previewed(content)
        self.shape = self.shape if before.whole else ""
        if changed:
            why = f"{_names(changed)} has changed. {capitalised(question.why)}"
            question = replace(question, why=why)
        self.code = before.code if question.runs else ""
        shown = "\n\n".join(each.shown for each in (before, *(others or {}).values()))
        question = replace(question, shown=shown, shape=self.shape, runs=bool(self.code))
        approval = await put_question(self.tool, self.context, question, self.approver)
        offered = {"run": question.runs, "turn": question.turn}.get(approval.answer, True)
        approval = approval if offered else replace(approval, answer="once")
        if others:
            self.given.reply = _last(self.context.messages, "assistant")
            self.given.calls = {
                name: (each, _for_call(approval, name)) for name, each in others.items()
            }
            approval = _for_call(approval, self.context.call.id)
        if approval.answer == "deny":
            return approval, []
        now = await in_thread(content_of, self.tool, self.arguments)
        self.shape = "" if content.changes(now) else self.shape
        changed = before.changes(await self.previewed(now))
        return approval, [name for name in changed if name not in approval.seen]

    async def previewed(self, content: Content) -> Content:
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
        if approval.answer == "run" and (runner := self._runner()) is not None:
            return replace(runner, runs=self.code)
        if approval.answer == "turn" and self.shape:
            self.given.allow(self.tool, self.shape, self.context.messages)
        if approval.answer == "always":
            self.remember(way)
        return way


def _for_call(approval: Approval, call_id: str) -> Approval:
    """Return the answer for one call from an answer that covers several calls."""
    return replace(approval, answer="deny") if call_id in approval.denied else approval


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
            turn=question.turn,
            runs=question.runs,
            calls=question.calls,
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
