"""The closed union of events that a turn announces, and the grammar they follow.

```
turn    = TurnStarted MessageAdded(user) step* TurnEnded
step    = [compression]
          (TextDelta | ReasoningDelta | RequestRetried [compression] | UsageReported)*
          UsageReported MessageAdded(assistant) segment* [MessageAdded(user)]
compression = UsageReported* [ContextCompressed], one UsageReported a request of the engine's own
segment = the calls that run side by side; each is
          ToolStarted [ApprovalAsked ApprovalGiven] (ToolProgress | UsageReported | child)*
          ToolFinished,
          the calls' events interleaved; MessageAdded(tool) comes in call order, each behind
          its ToolFinished
child   = ChildStarted ChildProgress* ChildFinished, those of one call interleaved
```

Of the UsageReported of a step, the last one is the answer's; the others, of a purpose each, are of
what its model asked of others. The optional user message at a step's end is the agent's own: a
nudge after an empty reply, or the request for a summary when a budget is spent; where even that no
longer fits, an assistant message of its own says so instead, without a request. A turn that is
stopped or fails may break off inside a step; what follows then closes it: the partial assistant
message if there was text, and for each open child its ChildFinished, for each open call its missing
ToolStarted, ToolFinished and MessageAdded. What a child used is in its own events: no UsageReported
of the turn counts it again.

Folding `MessageAdded` and `ContextCompressed` reproduces `agent.messages`; between two turns, a
compression stands alone. Deltas only serve
display: `RequestRetried` means that those of the running step are void.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hermes_nb.core.messages import Message, ToolCall, Usage

EndReason = Literal["answered", "budget", "interrupted", "failed"]
ToolStatus = Literal["ok", "error", "denied", "interrupted", "skipped"]
ChildStatus = Literal["done", "budget", "failed", "stopped"]
Answer = Literal["once", "always", "outside", "deny"]


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn begins; `turn` counts the turns of this agent from 1."""

    turn: int


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """The conversation grew by this message."""

    message: Message


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer, for display only."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning, for display only; an empty one is a mere sign of life.

    `was_text` says that this is what the deltas of the running step have shown as text.
    """

    text: str
    was_text: bool = False


@dataclass(frozen=True, slots=True)
class RequestRetried:
    """A request failed and will be sent again after `delay` seconds; void this step's deltas.

    `attempt` is the one that failed, of `tries` to the same model; 0 for none that are counted.
    """

    reason: str
    delay: float
    attempt: int
    model: str = ""
    tries: int = 0


@dataclass(frozen=True, slots=True)
class UsageReported:
    """What one request used, and the model that answered it.

    `purpose` is "" for a step of the turn, and else what the request was for, e.g. `summary`.
    """

    usage: Usage
    model: str = ""
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class ContextCompressed:
    """The conversation was replaced by a shorter one; token counts are of the prompt.

    `phase` says how: `pruned` (results shortened, nothing dropped), `summarised`, `extracted` (by
    rule, without a model), `referenced`, `restored` when an earlier compression was undone, or
    `rewound` when the last turns were taken back.
    `shortened` counts messages that became shorter, `dropped` those that `summary` stands for.
    `warning` is what the user should hear. `system` is the system prompt from now on.
    """

    messages: tuple[Message, ...]
    tokens_before: int
    tokens_after: int
    phase: str = ""
    shortened: int = 0
    dropped: int = 0
    summary: str = ""
    warning: str = ""
    system: str = ""


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call begins."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """The user is asked about a call; `why` says what made it ask, `shown` is what would run."""

    call: ToolCall
    why: str
    shown: str


@dataclass(frozen=True, slots=True)
class ApprovalGiven:
    """The answer; `reason` is what the model will read: why not, or what the user said."""

    call_id: str
    answer: Answer
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A sign of life from a running call, for display only.

    `text` is a note on one line or, with a line break in it, the end of what the call has shown.
    """

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A call has begun a child agent, the `number`-th (from 1) of its children.

    `session_id` is where the child's own conversation is stored.
    """

    call_id: str
    number: int
    goal: str
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class ChildProgress:
    """What a child does, such as `read_file a.csv`, and what it has used so far."""

    call_id: str
    number: int
    doing: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ChildFinished:
    """A child ended after `seconds`; `usage` is all that it used."""

    call_id: str
    number: int
    status: ChildStatus
    seconds: float
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A call ended after `seconds`; its result follows as a message."""

    call: ToolCall
    status: ToolStatus
    seconds: float


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The last event of every turn; `error` is one line when `reason` is `failed`.

    `note` says which budget of money or tokens ended it, and how much was used; it is empty when it
    was the requests. Of an answer it says why its end is missing.
    """

    reason: EndReason
    error: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReviewStarted:
    """The agent begins to look back over a conversation; `subject` is memory, skills or both."""

    session_id: str
    subject: str


@dataclass(frozen=True, slots=True)
class ReviewFinished:
    """It has looked back. `saved` has a line for each thing it learned; `error` is one line."""

    session_id: str
    subject: str
    saved: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: str = ""


BackgroundEvent = ReviewStarted | ReviewFinished
"""What happens beside the turns, from another thread."""
Delta = TextDelta | ReasoningDelta | RequestRetried | UsageReported
ChildEvent = ChildStarted | ChildProgress | ChildFinished
ToolEvent = ApprovalAsked | ApprovalGiven | ToolProgress | UsageReported | ChildEvent
Event = (
    TurnStarted
    | MessageAdded
    | Delta
    | ContextCompressed
    | ToolStarted
    | ToolEvent
    | ToolFinished
    | TurnEnded
)
