"""The event grammar as a checker: it follows the docstring of `hermes_nb.core.events`."""

from __future__ import annotations

from hermes_nb.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    CallDelta,
    ChildFinished,
    ChildProgress,
    ChildStarted,
    ContextCompressed,
    MessageAdded,
    ReasoningDelta,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)

BETWEEN_CALLS = (
    *(
        CallDelta,
        ContextCompressed,
        MessageAdded,
        ReasoningDelta,
        RequestRetried,
        TextDelta,
        UsageReported,
    ),
)
CHILD_EVENTS = (ChildStarted, ChildProgress, ChildFinished)
CALL_EVENTS = (ApprovalAsked, ApprovalGiven, ToolProgress, ToolFinished)


def check_grammar(events):
    """Raise AssertionError where the events of a turn leave the grammar."""
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-1], TurnEnded)
    assert isinstance(events[1], MessageAdded)
    assert events[1].message.role == "user"
    body = _Body()
    for event in events[2:-1]:
        body.take(event)
    assert not body.calls


class _Body:
    """What may come next between the user's message and the turn's end."""

    def __init__(self):
        self.calls = {}
        self.children = {}
        self.usage_reported = False

    def take(self, event):
        if isinstance(event, ToolStarted):
            assert self.calls[event.call.id] == "waiting"
            self.calls[event.call.id] = "running"
        elif isinstance(event, CHILD_EVENTS):
            self.take_child(event)
        elif isinstance(event, CALL_EVENTS):
            call_id = getattr(event, "call_id", "") or event.call.id
            assert self.calls[call_id] == "running"
            if isinstance(event, ToolFinished):
                assert not any(call == call_id for call, _ in self.running), "a child is open"
                self.calls[call_id] = "finished"
        elif isinstance(event, MessageAdded) and event.message.role == "tool":
            assert next(iter(self.calls)) == event.message.call_id, "results out of order"
            assert self.calls.pop(event.message.call_id) == "finished"
        elif isinstance(event, UsageReported) and "running" in self.calls.values():
            pass  # a tool asked a model
        else:
            assert isinstance(event, BETWEEN_CALLS), event
            assert not self.calls, "calls are open"
            self.take_between_calls(event)

    @property
    def running(self):
        return [child for child, state in self.children.items() if state == "running"]

    def take_child(self, event):
        assert self.calls[event.call_id] == "running"
        child = event.call_id, event.number
        if isinstance(event, ChildStarted):
            assert child not in self.children
            self.children[child] = "running"
            return
        assert self.children[child] == "running"
        if isinstance(event, ChildFinished):
            self.children[child] = "finished"

    def take_between_calls(self, event):
        if isinstance(event, MessageAdded) and event.message.role == "assistant":
            assert self.usage_reported or event.message.interrupted, "a reply without its usage"
            self.calls = {call.id: "waiting" for call in event.message.calls}
            self.children = {}
        self.usage_reported = isinstance(event, UsageReported)
