"""Two honest chat services: one in memory, one on the disk that outlives the gateway's process.

Both deliver what was not acknowledged again, note every copy of what is sent, and show what has the
same key once, if they de-duplicate. `python -m tests.extras.gateway.services FOLDER` serves the
one on the disk until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hermes_nb.core.files import append_line
from hermes_nb.extras.gateway.core import Adapter, Answer, Incoming
from hermes_nb.extras.gateway.service import Gateway


@dataclass
class Memory(Adapter):
    """A service in this process. `faults` are raised by the next sends, in this order."""

    name: str = "memory"
    deduplicates: bool = False
    most: int = 0
    binding: str = "order"
    unasked: str = ""
    faults: list[Exception] = field(default_factory=list)

    def __post_init__(self):
        self.posted: list[Incoming] = []
        self.sent: list[Answer] = []
        self.acknowledged: list[str] = []
        self.shown = 0
        self._changed = asyncio.Event()

    def post(self, text, *, chat="kitchen", user="ada", **fields):
        """Have a user write something; return its id."""
        above = [answer.key for answer in self.sent if answer.chat == chat]
        fields = {"after": above[-1] if above else "", **fields}
        message = Incoming(id=f"m{len(self.posted) + 1}", chat=chat, user=user, text=text, **fields)
        self.posted.append(message)
        self._changed.set()
        return message.id

    async def receive(self):
        at = 0
        while True:
            while at < len(self.posted):
                message, at = self.posted[at], at + 1
                if message.id not in self.acknowledged:
                    yield message
            self._changed.clear()
            await self._changed.wait()

    async def send(self, answer):
        if self.faults:
            raise self.faults.pop(0)
        self.sent.append(answer)

    async def acknowledge(self, message):
        self.acknowledged.append(message.id)

    async def working(self, chat):
        self.shown += 1

    async def until(self, condition, seconds=20.0):
        """Wait until a condition holds."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    async def said(self, count):
        """Wait for so many sent messages and return their texts."""
        await self.until(lambda: len(self.sent) >= count)
        return [answer.text for answer in self.sent]


@asynccontextmanager
async def serving(service, *, root, home, model, allow=("ada", "bob")):
    """Run a gateway over a service; yield the lines that it tells whoever runs it."""
    told = []
    gateway = Gateway(
        home,
        [service],
        {service.name: lambda user, chat: user in allow},
        root=root,
        tell=told.append,
        model=model,
    )
    task = asyncio.create_task(gateway.run())
    try:
        yield told
    finally:
        if task.done():
            task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Disk(Adapter):
    """A service whose state is two files: `posted`, and `seen` with what was sent or confirmed."""

    name = "disk"

    def __init__(self, folder: Path, *, deduplicates: bool):
        self.folder, self.deduplicates = folder, deduplicates
        self.posted_file, self.seen_file = folder / "posted", folder / "seen"

    def post(self, number, chat):
        """Have a user write something."""
        line = json.dumps({"id": f"m{number}", "chat": chat, "text": f"task {number}"})
        append_line(self.posted_file, line.encode() + b"\n", durable=False)

    def seen(self):
        """Return what was sent and confirmed, in order."""
        if not self.seen_file.exists():
            return []
        return [json.loads(line) for line in self.seen_file.read_bytes().splitlines() if line]

    async def receive(self):
        done = {row["id"] for row in self.seen() if row["kind"] == "confirmed"}
        at = 0
        while True:
            data = self.posted_file.read_bytes() if self.posted_file.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            for line in whole[at:].splitlines():
                row = json.loads(line)
                if row["id"] not in done:
                    yield Incoming(user="ada", **row)
            at = len(whole)
            await asyncio.sleep(0.02)

    async def send(self, answer):
        self._note(
            kind="sent", id=answer.to, chat=answer.chat, key=answer.key, text=answer.text,
            again=answer.again,
        )  # fmt: skip

    async def acknowledge(self, message):
        self._note(kind="confirmed", id=message.id)

    def _note(self, **row):
        append_line(self.seen_file, json.dumps(row).encode() + b"\n", durable=False)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    disk = Disk(where, deduplicates=sys.argv[2] == "1")
    gateway = Gateway(
        Path(os.environ["HERMES_HOME"]),
        [disk],
        {"disk": lambda user, chat: True},
        root=where,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    asyncio.run(gateway.run())
