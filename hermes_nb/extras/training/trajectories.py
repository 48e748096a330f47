"""Sessions as training data: one JSON line per session, in two formats used by trainers.

`sharegpt` has `conversations` of `from` (system, human, gpt, tool) and `value`, with `<think>`,
`<tool_call>` and `<tool_response>` in the text, as used to train Hermes models. `chat` has
`messages` and `tools` in TRL's format: calls have their arguments as objects, and `tools` is a JSON
string so that all lines have one schema. In both, `weight` is 1 for messages to train on and 0 for
others, and `metadata` describes the conversation.

Broken conversations are counted and left out, because a model would learn to repeat their faults.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from hermes_nb.context.boundaries import Group, cut, flat, grouped, is_ours, said_in, size
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.loop import NUDGE, is_prompt
from hermes_nb.core.messages import Image, Json, Message, Text, mend
from hermes_nb.core.protocols import StoredMessage, StoredSession
from hermes_nb.core.steering import added_by
from hermes_nb.core.text import estimate_tokens, number_of
from hermes_nb.core.tools import Toolset
from hermes_nb.models.text_calls import function_schema
from hermes_nb.safety.redact import redact, without_secrets

Form = Literal["chat", "sharegpt"]
FORMS: tuple[Form, ...] = get_args(Form)
Outcome = Literal["answered", "budget", "interrupted", "unfinished"]
PICTURE = "[picture]"
LEAST_RESULT = 400
"""Minimum characters left of a tool result after shortening."""
TOLD = 20
"""Maximum tokens in the line that replaces removed messages."""
_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A conversation for training."""

    id: str
    """Id of the session or the prompt."""
    messages: tuple[Message, ...]
    """The messages without the system prompt."""
    system: str = ""
    """The system prompt."""
    model: str = ""
    """Name of the model."""
    tools: tuple[Mapping[str, Json], ...] = ()
    """Schemas of the tools called."""
    left_out: int = 0
    """Number of messages removed to shorten it."""
    damaged: bool = False
    """Whether some of its messages are unreadable."""

    @property
    def outcome(self) -> Outcome:
        """How it ended, according to its last message."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last.interrupted:
            return "interrupted"
        if last is None or not _has_output(last) or last.calls:
            return "unfinished"
        asked = [message for message in self.messages if message.role == "user"][-1:]
        added = asked and (asked[0].text == NUDGE or added_by(asked[0]) is not None)
        summed = asked and not is_prompt(asked[0]) and not added
        return "budget" if summed else "answered"

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of calls and of failed calls by tool."""
        found: dict[str, dict[str, int]] = {}
        for message in self.messages:
            if message.role == "tool":
                counted = found.setdefault(message.name, {"calls": 0, "failed": 0})
                counted["calls"] += 1
                counted["failed"] += message.failed
        return dict(sorted(found.items()))


def trajectory_of(
    session: StoredSession, rows: Iterable[StoredMessage], known: Toolset
) -> Trajectory:
    """Return a session as it was before compression, without undone messages.

    `known` contains the tools whose full schemas are included. For other tools, the schema lists
    only the argument names used in calls.
    """
    rows = list(rows)
    turns: list[list[StoredMessage]] = [[]]
    for row in rows:
        if row.made or is_ours(row.message):
            continue
        if row.message.role == "user":
            turns.append([])
        turns[-1].append(row)
    messages: list[Message] = []
    for turn in turns:
        kept = [row.message for row in turn if row.state != "undone"]
        # An undo does not mark messages that a compression had already replaced.
        if len(kept) == len(turn) or turn[0].state == "active":
            messages += kept
    return Trajectory(
        id=session.id,
        messages=tuple(messages),
        system=session.system_prompt,
        model=session.model,
        tools=tuple(schemas(messages, known)),
        damaged=[row.position for row in rows] != list(range(len(rows))),
    )


def schemas(messages: Iterable[Message], known: Toolset) -> list[Mapping[str, Json]]:
    """Return the schemas of the called tools, sorted by name."""
    called: dict[str, set[str]] = collections.defaultdict(set)
    for message in map(without_secrets, messages):
        for call in message.calls:
            called[call.name].update(call.arguments)
    found: list[Mapping[str, Json]] = []
    for name in sorted(called):
        tool = known.get(name)
        seen = {"type": "object", "properties": {each: {} for each in sorted(called[name])}}
        plain = {"type": "function", "function": {"name": name, "parameters": seen}}
        found.append(function_schema(tool) if tool else plain)
    return found


def flaw(trajectory: Trajectory) -> str:
    """Return the reason a conversation is unsuitable for training, or "" if it is suitable."""
    messages = trajectory.messages
    if trajectory.damaged:
        return "damaged"
    if trajectory.outcome in ("interrupted", "unfinished"):
        return trajectory.outcome
    if messages[0].role != "user":
        return "no prompt"
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.call_id not in waiting:
                return "result without a call"
            waiting.remove(message.call_id)
            continue
        if waiting:
            return "call without a result"
        if any(call.problem for call in message.calls):
            return "unreadable call"
        waiting = [call.id for call in message.calls]
    return ""


def tokens_of(trajectory: Trajectory) -> int:
    """Return the approximate number of tokens in a conversation, as estimated by `core.text`."""
    return _fixed(trajectory) + size(_groups(trajectory.messages))


def shortened(trajectory: Trajectory, tokens: int) -> Trajectory:
    """Shorten a conversation to at most `tokens` tokens, or as far as possible.

    Long results are truncated first. Then steps (a call with its results) are removed from the
    middle, and one line states the number of removed messages. The prompt, the first steps and the
    end remain.
    """
    room = tokens - _fixed(trajectory)
    groups = _groups(trajectory.messages)
    if size(groups) <= room:
        return trajectory
    most = max(LEAST_RESULT, room * 4 // 10)
    groups = _groups(_cut(message, most) for message in flat(groups))
    room -= TOLD
    head: list[Group] = []
    for group in groups[:-1]:
        if head and size([*head, group]) > min(room // 3, room - groups[-1].tokens):
            break
        head.append(group)
    tail: list[Group] = []
    for group in reversed(groups[len(head) :]):
        if tail and size([*head, *tail, group]) > room:
            break
        tail.insert(0, group)
    gone = flat(groups[len(head) : len(groups) - len(tail)])
    parts = [Message.user(f"[{number_of(len(gone), 'message')} left out here]", origin="ours")]
    kept = (*flat(head), *(parts if gone else ()), *flat(tail))
    return replace(trajectory, messages=kept, left_out=len(gone))


def _fixed(trajectory: Trajectory) -> int:
    tools = canonical_json(list(trajectory.tools)) if trajectory.tools else ""
    return estimate_tokens(Message.system(each) for each in (trajectory.system, tools) if each)


def _groups(messages: Iterable[Message]) -> list[Group]:
    """Return a conversation's groups; their sizes include reasoning, which is trained on too."""
    found = []
    for group in grouped(messages):
        thoughts = [Message.assistant(each.reasoning) for each in group.messages if each.reasoning]
        found.append(replace(group, tokens=group.tokens + estimate_tokens(thoughts)))
    return found


def _cut(message: Message, most: int) -> Message:
    if message.role != "tool" or len(message.text) <= most:
        return message
    return replace(message, parts=(Text(cut(message.text, most), message.origin),))


def line(trajectory: Trajectory, form: Form) -> str:
    """Return a conversation as JSON without secrets; adjacent messages of one role are merged."""
    about: dict[str, Json] = {
        "id": trajectory.id,
        "model": trajectory.model,
        "outcome": trajectory.outcome,
        "tools": {name: dict(counted) for name, counted in trajectory.counts.items()},
        "left_out": trajectory.left_out,
    }
    tools = canonical_json(list(trajectory.tools))
    messages = tuple(mend([*map(without_secrets, trajectory.messages)], note=""))
    trajectory = replace(trajectory, messages=messages, system=redact(trajectory.system))
    said = (
        {"messages": as_chat(trajectory)}
        if form == "chat"
        else {"conversations": as_sharegpt(trajectory)}
    )
    return json.dumps({**said, "tools": tools, "metadata": about}, ensure_ascii=False)


def as_chat(trajectory: Trajectory) -> list[dict[str, Json]]:
    """Return a conversation's messages in TRL's format."""
    messages: list[dict[str, Json]] = []
    if trajectory.system:
        messages.append({"role": "system", "content": trajectory.system})
    for message in trajectory.messages:
        each: dict[str, Json] = {"role": message.role, "content": _text(message)}
        if message.role == "assistant":
            each["weight"] = _weight(message)
            if message.reasoning:
                each["reasoning_content"] = message.reasoning
            if message.calls:
                each["tool_calls"] = [
                    {"type": "function", "function": called} for called in _calls(message)
                ]
        if message.role == "tool":
            each["name"] = message.name
        messages.append(each)
    return messages


def as_sharegpt(trajectory: Trajectory) -> list[dict[str, Json]]:
    """Return a conversation's messages as `from` and `value`."""
    turns: list[dict[str, Json]] = []
    if trajectory.system:
        turns.append({"from": "system", "value": trajectory.system, "weight": 0})
    for message in trajectory.messages:
        value = _text(message)
        if message.role == "assistant":
            thought = f"<think>\n{message.reasoning}\n</think>" if message.reasoning else ""
            calls = [_marked("tool_call", each) for each in _calls(message)]
            value = "\n".join(filter(None, [thought, value, *calls]))
        elif message.role == "tool":
            value = _marked("tool_response", {"content": value, "name": message.name})
        turns.append({"from": _SPEAKERS[message.role], "value": value, "weight": _weight(message)})
    return turns


def _weight(message: Message) -> int:
    """Return 1 for messages to train on: the model's own, unless they were truncated."""
    return int(_has_output(message) and not message.interrupted)


def _has_output(message: Message) -> bool:
    return message.role == "assistant" and bool(message.text.strip() or message.calls)


def _text(message: Message) -> str:
    pictures = [PICTURE] * sum(isinstance(part, Image) for part in message.parts)
    return "\n".join(filter(None, [said_in(message), *pictures]))


def _calls(message: Message) -> list[dict[str, Json]]:
    # As valid JSON, because a NaN would make readers reject the whole file.
    written = [json.dumps(dict(call.arguments), default=str) for call in message.calls]
    plain = [json.loads(each, parse_constant=str) for each in written]
    return [{"name": c.name, "arguments": a} for c, a in zip(message.calls, plain, strict=True)]


def _marked(mark: str, value: Mapping[str, Json]) -> str:
    """Return JSON in a tag; the tag's closing form is escaped inside, as JSON allows."""
    inside = canonical_json(value).replace("</tool_", "<\\/tool_")
    return f"<{mark}>\n{inside}\n</{mark}>"


def name_of(prompt: str) -> str:
    """Return the id for a prompt's conversation, derived from the prompt's text."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]
