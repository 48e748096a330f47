"""What sessions are billed for their prompts, beside what an ideal user of the cache would be.

Run with `make bench-bill`. Real sessions talk to a server on this machine; what it was sent is
billed in two ways, a token being four characters of JSON, in prices of an uncached token:

- `automatic`, as OpenAI does: what extends an earlier request is read at 0.1, in steps of 128
  tokens from 1,024 on; everything else costs 1.
- `marked`, as Anthropic does: of the prefixes that end at a mark, the longest that is kept, and
  stands at most 20 blocks before a mark, is read at 0.1; from there to the last mark is written
  at 1.25, from 1,024 on; everything else costs 1.

The bound is the same content, with a cache that has neither steps, minimum, blocks nor marks: what
no earlier request began with is written once (at 1, or 1.25), the rest read at 0.1. Limits: 1.05
and 1.08 for long chats, 1.4 and 1.5 for short ones. `native` is billed as `marked`, in requests of
Anthropic's own protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from hermes_nb.agent.runtime import Runtime
from hermes_nb.agent.session.session import Identity, Session
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.profiles import CachingStyle, Profile, WireName
from hermes_nb.safety.guard import Guard
from tests.loopback import Loopback, Reply, stream, text_chunks, tool_chunks
from tests.wires import Said

from figures import figure

READ = 0.1
STEP, LEAST, BACK = 128, 1_024, 20
LONG, SHORT = (24, 5), (3, 1)
"""Turns of a chat, and steps with tool calls of each turn."""
CHATS = 4
"""Short chats that follow each other while what they share is kept."""


@dataclass(frozen=True)
class Block:
    """A piece of a request: its text without marks, its tokens, and whether it has a mark."""

    text: str
    tokens: float
    marked: bool


def blocks_of(body: dict[str, Any]) -> list[Block]:
    """Return a request's blocks in the order that they are cached in: tools, system, messages.

    A system prompt is as many as it has paragraphs, as sessions differ in one of them.
    """
    if isinstance(body.get("system"), list):  # Anthropic's protocol
        found = [_block(body.get("tools", [])), *_paragraphs(body["system"])]
        return found + [_block(part) for each in body["messages"] for part in each["content"]]
    system, *messages = body["messages"]
    found = [_block(body.get("tools", [])), *_paragraphs(system["content"])]
    for message in messages:
        calls = message.pop("tool_calls", [])
        found += [_block(message)] if message.get("content") else []
        found += map(_block, calls)
    return found


def _paragraphs(content: Any) -> list[Block]:
    found = []
    for part in content if isinstance(content, list) else [{"text": content}]:
        texts = [each for each in re.split(r"(?<=\n\n)", part["text"]) if each]
        found += [Block(text, len(text) / 4, marked=False) for text in texts]
        found[-1] = replace(found[-1], marked="cache_control" in part)
    return found


def _block(value: Any) -> Block:
    text = json.dumps(value)
    bare = json.dumps(_unmarked(value))
    return Block(bare, len(bare) / 4, text != bare)


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(each) for each in value]
    if not isinstance(value, dict):
        return value
    bare = {key: _unmarked(each) for key, each in value.items() if key != "cache_control"}
    content = bare.get("content")
    if isinstance(content, list) and [part.get("type") for part in content] == ["text"]:
        bare["content"] = content[0]["text"]  # a text is the same bare and as its only part
    return bare


def billed(requests: Sequence[Sequence[Block]], *, marks: bool) -> tuple[float, float]:
    """Return what requests cost in uncached tokens, and the bound."""
    write = 1.25 if marks else 1.0
    paid = bound = 0.0
    sent: set[tuple[str, ...]] = set()
    kept: set[tuple[str, ...]] = set()
    for blocks in requests:
        prefixes = [tuple(block.text for block in blocks[:n]) for n in range(len(blocks) + 1)]
        sizes = [sum(block.tokens for block in blocks[:n]) for n in range(len(blocks) + 1)]
        total = sizes[-1]
        known = max(n for n, prefix in enumerate(prefixes) if not n or prefix in sent)
        bound += sizes[known] * READ + (total - sizes[known]) * write
        if marks:
            ends = [n for n, block in enumerate(blocks, 1) if block.marked and sizes[n] >= LEAST]
            reach = [m for n in ends for m in range(max(1, n - BACK), n + 1)]
            read = max((sizes[m] for m in reach if prefixes[m] in kept), default=0.0)
            written = max(sizes[max(ends, default=0)], read) - read
            kept.update(prefixes[n] for n in ends)
        else:
            read = sizes[known] // STEP * STEP if sizes[known] >= LEAST else 0.0
            written = 0.0
        paid += read * READ + written * write + (total - read - written)
        sent.update(prefixes)
    return paid, bound


def replies(turns: int, calls: int, side: int, wire: WireName) -> list[Reply]:
    """Return what a model says in a chat whose steps have `side` calls each."""
    out = []
    for turn in range(turns):
        for step in range(calls):
            made = [
                ("read_file", {"path": f"part{(turn + n) % 5}.csv", "offset": 1 + step + 7 * turn})
                for n in range(side)
            ]
            ids = f"call_{turn}_{step}_"
            calling = Said(calls=made, ids=ids).on("messages")
            out.append(calling if wire == "messages" else stream(tool_chunks(*made, ids=ids)))
        text = f"Month {turn}: totals are as in the table. " * 8
        saying = Said(text, size=80).on("messages")
        out.append(saying if wire == "messages" else stream(text_chunks(text, size=80)))
    return out


async def chat(
    work: Path, turns: int, calls: int, side: int, *, marks: bool, wire: WireName
) -> list[list[Block]]:
    """Take the turns of a chat and return what was sent."""
    settings = load_settings()
    store = open_store(settings, print)
    runtime = Runtime(
        settings, root=work, store=store, guard=Guard("all"), approver=None, tell=print
    )
    caching: CachingStyle = "system_and_3" if marks else "prefix"
    profile = Profile(wire=wire, caching=caching, window=400_000)
    with Loopback(*replies(turns, calls, side, wire)) as server:
        model = OpenAIChat("m", base_url=server.url, profile=profile)
        session = Session.start(
            store=store, spec=runtime.spec(model), identity=Identity(), warn=print
        )
        for turn in range(turns):
            async with aclosing(session.turn(f"Look at month {turn}, and tell me.")) as events:
                async for _ in events:
                    pass
        await model.aclose()
        return [blocks_of(body) for body in server.bodies]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["HERMES_HOME"] = str(Path(name, "home"))
        work = Path(name, "work")
        work.mkdir()
        for part in range(5):
            rows = "".join(f"2026-{row % 12 + 1:02},{row * 17 % 991}\n" for row in range(120))
            Path(work, f"part{part}.csv").write_text(f"month,total\n{rows}")
        print(f"{'':32}{'requests':>9}{'tokens':>10}{'billed':>10}")
        kinds: tuple[tuple[str, bool, WireName, float, float], ...] = (
            ("automatic", False, "chat", 1.05, 1.4),
            ("marked", True, "chat", 1.08, 1.5),
            ("native", True, "messages", 1.08, 1.5),
        )
        for kind, marks, wire, long, short in kinds:
            for what, size, side, limit in (
                ("long", LONG, 1, long),
                ("long, 4 calls a step", LONG, 4, long),
                ("short", SHORT, 1, short),
            ):
                requests = []
                for _ in range(CHATS if size == SHORT else 1):
                    requests += asyncio.run(chat(work, *size, side, marks=marks, wire=wire))
                paid, bound = billed(requests, marks=marks)
                tokens = sum(block.tokens for blocks in requests for block in blocks)
                label = f"{kind}, {what}"
                print(f"{label:32}{len(requests):9}{tokens:10,.0f}{paid:10,.0f}")
                figure(f"billed, {label}", paid / bound, "of the bound", most=limit)


if __name__ == "__main__":
    main()
