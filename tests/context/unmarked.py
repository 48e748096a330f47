"""Facts that nobody marked, in the conversations of bench/probes, and how many stay in view."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from hermes_nb.context.archive import Archive, everything
from hermes_nb.context.compressor import Compressor
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.text import estimate_tokens
from hermes_nb.memory.sessions import SqliteStore

WINDOW = 200_000
_SPEC = spec_from_file_location("unmarked_facts", Path("bench/probes/make.py").resolve())
make = sys.modules["unmarked_facts"] = module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)


class Ideal:
    """A summariser that repeats every needle that it is shown."""

    name = "ideal"
    window = WINDOW

    def __init__(self, probes):
        self._needles = sorted(
            {each for probe in probes for any_of in probe.needles for each in any_of}
        )

    async def stream(self, request):
        shown = "\n".join(map(everything, request.messages)).casefold()
        kept = [f"- {needle}" for needle in self._needles if needle.casefold() in shown]
        said = Message.assistant("\n".join(["## Critical values", *kept]))
        yield Reply(message=said, usage=Usage(input=1, output=1, requests=1))

    async def aclose(self):
        pass


def messages_of(session) -> list[Message]:
    """Return a session's messages, which are in OpenAI's form."""
    calls: dict[str, ToolCall] = {}
    out: list[Message] = []
    for each in session.messages:
        if each["role"] == "tool":
            out.append(Message.tool(calls[each["tool_call_id"]], each["content"]))
        elif each["role"] == "user":
            out.append(Message.user(each["content"]))
        else:
            made = [
                ToolCall(
                    id=call["id"],
                    name=call["function"]["name"],
                    arguments=json.loads(call["function"]["arguments"]),
                    text=call["function"]["arguments"],
                )
                for call in each.get("tool_calls", ())
            ]
            calls |= {call.id: call for call in made}
            out.append(Message.assistant(each["content"], calls=made))
    return out


def compressed(
    session, *, limit: int, rounds: int = 1, ideal: bool = False, focus: str = ""
) -> list[Message]:
    """Return what is left after compressing a session whole, or in so many equal parts."""
    messages = messages_of(session)
    total, sent, done = estimate_tokens(messages), 0, 0
    view: list[Message] = []
    with closing(SqliteStore(":memory:")) as store:
        stored = store.start()
        engine = Compressor(
            Ideal(session.probes) if ideal else None,
            window=WINDOW,
            max_prompt_tokens=limit,
            archive=Archive(store, stored),
        )
        for message, later in zip(messages, [*messages[1:], None], strict=True):
            view.append(message)
            store.append(stored, message)
            sent += estimate_tokens([message])
            if later is None or (later.role != "tool" and sent >= total * (done + 1) / rounds):
                engine.should_compress(max(limit, estimate_tokens(view)))
                view = list(asyncio.run(engine.compress(view, focus)).messages)
                store.replace(stored, view)
                done += 1
    return view


def in_view(session, messages) -> dict[str, list[bool]]:
    """Return for each kind of fact, and for all, which of them are in view."""
    view = "\n".join(map(everything, messages)).casefold()
    found: dict[str, list[bool]] = defaultdict(list)
    for probe in session.probes:
        seen = all(any(each.casefold() in view for each in any_of) for any_of in probe.needles)
        found[probe.kind].append(seen)
        found["all"].append(seen)
    return found
