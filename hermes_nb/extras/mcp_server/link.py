"""Find a kernel that accepts calls, and talk to its socket."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.messages import Json

BUSY = 1.0
"""Seconds between the messages that say why a call is waiting."""
ANSWER = 1 << 27
"""Maximum bytes of a message from the kernel."""
LOOK = 5.0
"""Seconds that a kernel may take to say which notebook it has."""
START = "run `%hermes serve` in the notebook that it should use"
COMPILED = "the kernel is busy in compiled code"
Waits = Callable[[float, str], Awaitable[None]]
"""Hears the seconds that a call has waited, and why."""


def folder() -> Path:
    """Return the folder of the kernels' sockets."""
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(jupyter_runtime_dir()) / "hermes_nb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The kernel that the command line names."""

    kernel: str = ""
    """Its id, or the start of it."""
    notebook: str = ""
    """The path of its notebook."""

    async def found(self) -> Path:
        """Return the kernel's socket; raise `ConfigError` if there is not exactly one."""
        fits = [(path, info) for path, info in await kernels() if self._fits(info)]
        if len(fits) == 1:
            return fits[0][0]
        if not fits:
            named = self.kernel or self.notebook
            what = f"no kernel {named!r} accepts" if named else "no kernel accepts"
            raise ConfigError(f"{what} calls from other agents; {START}")
        listed = "\n".join(f"  {shown(info)}" for _, info in fits)
        raise ConfigError(f"choose a kernel with --kernel or --notebook:\n{listed}")

    def _fits(self, info: dict[str, Json]) -> bool:
        if self.notebook:
            return os.path.realpath(str(info["notebook"])) == os.path.realpath(self.notebook)
        name = str(info["kernel"])
        return name.startswith(self.kernel) or self.kernel.startswith(name)


async def kernels() -> list[tuple[Path, dict[str, Json]]]:
    """Return the sockets that answer, with their kernels and notebooks."""
    paths = sorted(folder().glob("*.sock"))
    answers = await asyncio.gather(*(_asked(path) for path in paths))
    return [(path, info) for path, info in zip(paths, answers, strict=True) if info]


async def _asked(path: Path) -> dict[str, Json]:
    """Return a kernel's name and notebook; {} if it has ended or belongs to another version."""
    link = Link(path)
    try:
        info = await asyncio.wait_for(link.ask(op="info"), LOOK)
    except TimeoutError:  # compiled code holds the interpreter
        return {"kernel": path.stem, "notebook": ""}
    except HermesError:
        return {}
    finally:
        link.close()
    return info if "kernel" in info and "notebook" in info else {}


def shown(info: dict[str, Json]) -> str:
    """Return a kernel as one line."""
    return f"{info['kernel']}  {info['notebook'] or '(no notebook known)'}"


class Link:
    """A connection to a kernel's socket, opened on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Queue[dict[str, Json]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._opening = asyncio.Lock()

    @property
    def open(self) -> bool:
        """Whether the kernel is connected."""
        return self._writer is not None and not self._writer.is_closing()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def ask(self, waits: Waits | None = None, **asked: Json) -> dict[str, Json]:
        """Return the kernel's answer; raise `HermesError` if it ends first."""
        async with self._opening:
            writer = await self._opened()
        number = next(self._numbers)
        answers = self._answers[number] = asyncio.Queue()
        answer: dict[str, Json] = {"waits": 0.0}
        waited = 0.0
        try:
            writer.write(json.dumps({"id": number, **asked}).encode() + b"\n")
            await writer.drain()
            while "waits" in answer:
                try:
                    answer = await asyncio.wait_for(answers.get(), 1.5 * BUSY)
                except TimeoutError:
                    answer = {"waits": waited + 1.5 * BUSY, "why": COMPILED}
                if "waits" in answer and waits is not None:
                    waited = float(answer["waits"])
                    await waits(waited, str(answer["why"]))
        except ConnectionError as error:
            raise HermesError(ENDED) from error
        finally:
            del self._answers[number]
            if "waits" in answer and not writer.is_closing():  # cancelled
                writer.write(json.dumps({"id": number, "op": "cancel"}).encode() + b"\n")
        if "gone" in answer:
            raise HermesError(ENDED)
        return answer

    async def _opened(self) -> asyncio.StreamWriter:
        if self._writer is None or self._writer.is_closing():
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._path, limit=ANSWER)
            except OSError as error:
                raise HermesError(ENDED) from error
            self._reading = asyncio.create_task(self._read(reader, self._writer))
        return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = json.loads(line)
                if queue := self._answers.get(answer["id"]):
                    queue.put_nowait(answer)
        except (ValueError, ConnectionError):
            pass  # treated as the end of the kernel
        finally:
            writer.close()
            for queue in self._answers.values():
                queue.put_nowait({"gone": True})


ENDED = f"the kernel has ended, or it accepts no calls any more; {START}"


class Kernel:
    """The kernel that the command line names; found again after a restart."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._link: Link | None = None

    async def ask(self, waits: Waits | None = None, **asked: Json) -> dict[str, Json]:
        """Return the kernel's answer; raise `HermesError` if there is none."""
        if self._link is None or not self._link.open:
            self._link = Link(await self._choice.found())
        return await self._link.ask(waits, **asked)
