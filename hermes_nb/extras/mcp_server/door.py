"""In the kernel: offers the notebook's tools to other programs of this user on a Unix socket.

A message is one line of JSON. Calls are judged by a guard of their own, never by the mode of a turn
that runs. Questions appear in the notebook's page only; without a page, the answer is no. All that
a client writes counts as untrusted content. Each change can be undone, as a turn of the client.

Calls that only look at variables are answered at once, on a thread of its own, also while a cell
runs. So are calls that read cells: while the kernel is busy, they get the notebook as last saved.
Other calls wait until no cell runs.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import socket
import struct
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from hermes_nb.agent.settings.config import APPROVE_MODES
from hermes_nb.core.calls import Outcome, bounded, execute
from hermes_nb.core.errors import ConfigError, HermesError, ToolError
from hermes_nb.core.files import make_private
from hermes_nb.core.messages import Json, Message, ToolCall
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.threads import LoopThread, in_thread
from hermes_nb.core.tools import (
    Arguments,
    Content,
    Place,
    Risk,
    Tool,
    ToolContext,
    Toolset,
    foreseen,
)
from hermes_nb.extras.mcp_server.link import BUSY, folder
from hermes_nb.notebook.access import kernel_id
from hermes_nb.notebook.approval import CellApprover
from hermes_nb.notebook.cell_tools import notebook_tools
from hermes_nb.notebook.commands.edits import restorer_of
from hermes_nb.notebook.document.document import NotebookDocument
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.execute.code_lock import agent_code
from hermes_nb.notebook.execute.network import by_hermes
from hermes_nb.notebook.execute.variable_history import history_of
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.notebook.shell import has_kernel
from hermes_nb.safety.guard import Guard, Mode
from hermes_nb.safety.markup import code_span
from hermes_nb.tools.schema import tool

Result = TypeVar("Result")
VARIABLES = frozenset({"list_variables", "inspect_variable"})
"""Tools that need neither the page nor the kernel's main thread."""
CELLS = ("notebook_outline", "read_cells")
"""Tools that read the notebook."""
SOON = 0.25
"""Seconds in which a free kernel starts a call."""
LONGEST = 1 << 20
"""Maximum bytes of a message to the kernel."""
MOST_CLIENTS, MOST_CALLS = 32, 32
"""Maximum number of connections, and of the running calls of each."""
SAVED = "(The kernel is busy. This is the notebook as it was last saved.)"
CHANGED = "the cell has changed while the call was waiting: read it, and call the tool again"
NOBODY = (
    "the notebook is not open in a page that could ask. The user can open it in JupyterLab or "
    "Notebook 7, or run `%hermes serve --approve edits` (or `all`)"
)


async def serve(agent: KernelAgent, given: Namespace) -> str:
    """Accept calls from other programs of this user, or stop accepting them."""
    if not (has_kernel(agent.shell) and hasattr(socket, "AF_UNIX")):
        raise ConfigError("this needs a Jupyter kernel on Linux or macOS (on Windows, in WSL)")
    if (old := _doors.pop(agent, None)) is not None:
        old.close()
    if given.action == "stop":
        return "Other agents cannot use this notebook any more."
    if given.approve not in ("", *APPROVE_MODES):
        raise ConfigError(f"--approve takes one of {', '.join(APPROVE_MODES)}")
    asks: Mode = "never" if agent.settings().approve == "never" else "ask"
    wished = agent.settings(approve=given.approve or asks)
    wished.insist(*(["approve"] if given.approve else []))
    mode = agent.permission.granted(wished.approve)
    await agent.access.look()
    door = _doors[agent] = Door(agent, mode)
    name = await door.open()
    told = {
        "all": "They need no approval",
        "edits": "Code that they run needs your approval, here in the notebook",
        "ask": "What they run or change needs your approval, here in the notebook",
        "never": "They can only look",
    }[mode]
    return (
        f"Other agents on this computer can use this notebook: "
        f"{code_span(f'jupyter hermes mcp --kernel {name}')}. {told}. "
        "`%hermes undo` undoes their changes, `%hermes serve stop` ends this."
    )


class PageApprover:
    """Asks in the notebook's page whether a client's call may run; without a page, denies it."""

    def __init__(self, agent: KernelAgent, client: str, asked: set[str]) -> None:
        async def unanswered(_: str) -> None:
            return None

        self._client, self._asked, self._page = client, asked, agent.access.frontend
        self._approver = CellApprover(agent.shell, self._page, read=unanswered)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer."""
        self._asked.add(request.call.id)
        try:
            if await self._page.present() is None:
                return Approval("deny", NOBODY)
            why = f"{self._client}, another program, asks for this (MCP): {request.why}"
            return await self._approver.ask(replace(request, why=why))
        finally:
            self._asked.discard(request.call.id)


class Door:
    """A kernel's socket. Create it on the kernel's event loop; `mode` is what needs no approval."""

    def __init__(self, agent: KernelAgent, mode: Mode) -> None:
        settings = agent.settings()
        sandbox = settings.sandbox
        self._guard = Guard(mode, required=sandbox.required, sandboxed=sandbox.use != "off")
        self._agent, self._runtime, self._line = agent, agent.runtime, asyncio.Lock()
        self._main, self._thread = asyncio.get_running_loop(), LoopThread("hermes-door")
        self._name = kernel_id()[:12] or str(os.getpid())
        self._path = folder() / f"{self._name}.sock"
        self._numbers, self._clients = count(1), 0
        self._asked: set[str] = set()
        self._runs = False
        self._pid = os.getpid()

    async def open(self) -> str:
        """Listen, and return the name that `jupyter hermes mcp --kernel` takes."""
        make_private(self._path.parent)
        status = self._path.parent.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(f"{self._path.parent} must belong to you, with mode 0700")
        try:
            await asyncio.wrap_future(self._thread.submit(self._listen()))
        except OSError as error:
            self.close()
            raise ConfigError(f"the socket {self._path} cannot be used: {error}") from error
        self._agent.at_close.append(self.close)
        atexit.register(self.close)
        return self._name

    def close(self) -> None:
        """Stop listening, and cancel the calls; a forked child leaves the socket alone."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        with suppress(ValueError):
            self._agent.at_close.remove(self.close)
        self._thread.close()
        self._path.unlink(missing_ok=True)

    async def _listen(self) -> None:
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self._path, limit=LONGEST)
        self._path.chmod(0o600)  # until then, the folder's mode protects it
        self._listening = asyncio.create_task(_until_cancelled(server))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a client's messages until it leaves or sends something that is not a message."""
        connection = _Connection(self, writer)
        self._clients += 1
        try:
            if _peer(writer) in (None, os.getuid()) and self._clients <= MOST_CLIENTS:
                while line := await reader.readline():
                    await connection.take(json.loads(line))
        except (ValueError, TypeError, RecursionError, ConnectionError):
            pass  # no message, or too long; or the client is gone
        finally:
            self._clients -= 1
            connection.close()

    def info(self) -> dict[str, Json]:
        """Return the kernel's name and notebook."""
        return {"kernel": self._name, "notebook": self._agent.notebook}

    def tools(self, client: str) -> tuple[Toolset, Toolset]:
        """Return a client's tools, and those that read the notebook's file."""
        agent = self._agent
        shell, access = agent.shell, agent.access

        async def saved(_: Place) -> NotebookDocument:
            return FileDocument(Path(agent.notebook))

        own = kernel_tools(shell) + notebook_tools(shell, access.document, foreign=access.foreign)
        own = own.without("run_notebook", "try_python", "wait_for") + Toolset([self._undo()])
        file = notebook_tools(shell, saved, foreign=access.foreign).only(*CELLS)
        approver = PageApprover(agent, client, self._asked)
        offered = (own.map(self._in_turn), file)
        made = (
            self._runtime.offered(each, guard=self._guard, approver=approver, source="mcp")
            for each in offered
        )
        return next(made).map(self._in_line), next(made)

    def _in_line(self, each: Tool) -> Tool:
        """Make a tool wait for other calls, so that none changes a cell after the user's answer."""

        async def run(context: ToolContext, arguments: Arguments) -> object:
            async with self._line:
                return await each.run(context, arguments)

        return each if each.risk is Risk.READ else replace(each, run=run)

    def _in_turn(self, each: Tool) -> Tool:
        """Make a tool wait for running cells, after the question whether it may run.

        It does not run if a cell that was in the question has changed meanwhile.
        """

        async def run(context: ToolContext, arguments: Arguments) -> object:
            before = await _previewed(each, context, arguments)
            async with agent_code(self._agent.shell):
                if before.changes(await _previewed(each, context, arguments)):
                    raise ToolError(CHANGED)
                self._runs = True
                try:
                    return await each.run(context, arguments)
                finally:
                    self._runs = False

        return each if each.risk is Risk.READ else replace(each, run=run)

    def _undo(self) -> Tool:
        checkpoints = self._agent.access.checkpoints

        @tool(toolset="notebook", risk=Risk.WRITE, exclusive=True)
        async def undo(context: ToolContext) -> str:
            """Undo your last change to the notebook or the variables."""
            session = context.place.session
            restorer = restorer_of(self._agent, variables=history_of(self._agent.shell))
            report = await checkpoints.undo(session, restorer=restorer)
            lines = [f"undone: {line.text}" for line in report.done]
            lines += [f"left as it is: {line.text}" for line in report.conflicts]
            return "\n".join([*lines, *report.notes]) or "nothing had changed"

        return undo

    def context(self, call: ToolCall, client: str, risk: Risk) -> ToolContext:
        """Return a call's context: the client's own session, with a turn for each change."""
        guests, session = self._agent.guests, f"mcp-{client}-{self._name[:8]}"
        if risk is not Risk.READ:
            guests[session] = guests.get(session, 0) + 1
        turn = guests.get(session, 0)
        whose = Message.tool(
            replace(call, name=client), "calls of another program", origin="outside"
        )
        return ToolContext(
            call=call,
            turn=next(self._numbers),  # each call has the full limit on its output
            place=Place(session=session, turn=turn, notebook=self._agent.notebook),
            messages=(whose,),
            sees_images=True,
        )

    def why(self) -> str:
        """Return what calls are waiting for."""
        if self._asked:
            return "the user's answer in the notebook"
        return "an agent's code is running" if self._runs else "a cell is running"

    async def responds(self) -> bool:
        """Return whether the kernel's main thread is free."""
        try:
            await asyncio.wait_for(self.on_main(asyncio.sleep(0)), SOON)
        except TimeoutError:
            return False
        return True

    async def on_main(self, work: Coroutine[object, None, Result]) -> Result:
        """Run a coroutine on the kernel's event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._main))

    @property
    def saved(self) -> bool:
        """Whether the notebook has a file."""
        return bool(self._agent.notebook)


_doors: WeakKeyDictionary[KernelAgent, Door] = WeakKeyDictionary()
Say = Callable[..., Awaitable[None]]


class _Connection:
    """A client's connection; its calls run side by side."""

    def __init__(self, door: Door, writer: asyncio.StreamWriter) -> None:
        self._door, self._writer = door, writer
        self._tasks: dict[Json, asyncio.Task[None]] = {}
        self._tools: dict[str, tuple[Toolset, Toolset]] = {}

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._writer.close()

    async def take(self, asked: Json) -> None:
        """Start or cancel a call; raise TypeError for what is not a message."""
        if not isinstance(asked, dict) or not isinstance(number := asked.get("id"), int):
            raise TypeError
        if asked.get("op") == "cancel":
            if number in self._tasks:
                self._tasks[number].cancel()
        elif len(self._tasks) >= MOST_CALLS or number in self._tasks:
            await self._send(number, status="error", text="too many calls at a time")
        else:
            task = self._tasks[number] = asyncio.create_task(self._answer(number, asked))
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _send(self, number: int, **answer: Json) -> None:
        self._writer.write(json.dumps({"id": number, **answer}).encode() + b"\n")
        await self._writer.drain()

    async def _answer(self, number: int, asked: dict[str, Json]) -> None:
        async def say(**answer: Json) -> None:
            await self._send(number, **answer)

        client = re.sub(r"[^\w.-]+", "-", str(asked.get("client") or ""), flags=re.ASCII)
        client = client.strip("-.")[:40] or "unnamed"
        with suppress(ConnectionError):
            try:
                if client not in self._tools and asked.get("op") != "info":
                    if len(self._tools) >= MOST_CLIENTS:
                        raise ConfigError("too many clients on one connection")
                    self._tools[client] = self._door.tools(client)
                match asked.get("op"):
                    case "info":
                        await say(**self._door.info())
                    case "tools":
                        await say(tools=[_described(each) for each in self._tools[client][0]])
                    case "call":
                        await self._call(asked, client, say)
                    case _:
                        await say(status="error", text="no such operation")
            except HermesError as error:
                await say(status="error", text=str(error))

    async def _call(self, asked: dict[str, Json], client: str, say: Say) -> None:
        tools, file = self._tools[client]
        name, given = str(asked.get("name")), asked.get("arguments") or {}
        problem = "" if isinstance(given, dict) else "the arguments must be an object"
        call = ToolCall(
            id=f"mcp-{os.urandom(6).hex()}",
            name=name,
            arguments=given if not problem else {},
            problem=problem,
        )
        (call,) = bounded(Message.assistant(calls=[call]), tools).calls
        called = tools.get(name)
        context = self._door.context(call, client, called.risk if called else Risk.READ)
        note = ""
        if name in VARIABLES:  # a slow `repr` must not delay other calls
            outcome = await in_thread(asyncio.run, execute(call, tools, context))
        elif name in CELLS and self._door.saved:
            live = await self._door.responds() and await self._soon(call, tools, context)
            note = "" if live else f"{SAVED}\n"
            outcome = live or await execute(call, file, context)
        else:
            outcome = await self._waited(_executed(call, tools, context), say)
        images = [{"mime": each.mime, "data": each.data} for each in outcome.message.images]
        await say(status=outcome.status, text=note + outcome.message.text, images=images)

    async def _soon(self, call: ToolCall, tools: Toolset, context: ToolContext) -> Outcome | None:
        """Run a call on the kernel's loop; return None if a cell has started before it ends."""
        try:
            work = self._door.on_main(_executed(call, tools, context))
            return await asyncio.wait_for(work, BUSY)
        except TimeoutError:
            return None

    async def _waited(self, work: Coroutine[None, None, Outcome], say: Say) -> Outcome:
        """Run a call on the kernel's loop, and report every second why it has not ended."""
        began = time.monotonic()
        waiting = asyncio.ensure_future(self._door.on_main(work))
        try:
            while not (await asyncio.wait({waiting}, timeout=BUSY))[0]:
                await say(waits=round(time.monotonic() - began, 1), why=self._door.why())
            return waiting.result()
        finally:
            waiting.cancel()


async def _previewed(each: Tool, context: ToolContext, arguments: Arguments) -> Content:
    """Return what a call would change or run; raise ToolError."""
    seen = await foreseen(each.preview, context, arguments) if each.preview else ""
    return Content(shown=seen) if isinstance(seen, str) else seen


@by_hermes
async def _executed(call: ToolCall, tools: Toolset, context: ToolContext) -> Outcome:
    return await execute(call, tools, context)


async def _until_cancelled(server: asyncio.Server) -> None:
    async with server:
        await server.serve_forever()


def _described(each: Tool) -> dict[str, Json]:
    reads = each.risk is Risk.READ
    return {
        "name": each.name,
        "description": each.description,
        "parameters": dict(each.parameters),
        "reads": reads,
    }


def _peer(writer: asyncio.StreamWriter) -> int | None:
    """Return the id of the user at the other end; None where only Linux would say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return cast("int", struct.unpack("3i", found)[1])
