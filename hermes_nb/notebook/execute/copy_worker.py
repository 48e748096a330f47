"""The process that runs code on a copy of the notebook's variables.

It reads two lines of JSON from stdin: how to prepare (`Start`), then, when there is something to
run, a job (`Job`), which is followed by the pickles and buffers of a `Handover`. It replies with
one line of JSON (`Reply`) and ends, unless the job says that more follow. It also ends if stdin is
closed or the first job does not arrive in time.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import linecache
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypedDict

from hermes_nb.core.messages import Json
from hermes_nb.core.text import head_tail
from hermes_nb.core.tools import Place
from hermes_nb.notebook.execute.handover import take_over
from hermes_nb.notebook.execute.nested import execute
from hermes_nb.notebook.execute.variable_changes import brief_change, changes
from hermes_nb.notebook.execute.variable_history import mention
from hermes_nb.notebook.shell import Foreign, Shell

MOST_MEMORY = 2 << 30
"""Maximum bytes of data of the process and of each program that it starts."""
MOST_REPLY = 40_000_000
"""Maximum bytes of a reply."""
_PRINTED = 100_000
"""Maximum characters of the output of programs that the code starts."""


class Start(TypedDict):
    """How to prepare for a job."""

    path: list[str]
    """`sys.path` of the kernel."""
    modules: list[str]
    """Modules to import."""
    fonts: dict[str, str]
    """Files of matplotlib's font cache, which takes seconds to make."""
    idle: float
    """Seconds to wait for a job."""


class Job(TypedDict):
    """Code to run."""

    code: str
    names: Mapping[str, Sequence[int]]
    """The variables that follow, as in `Handover.names`."""
    head: int
    """Bytes of their pickles."""
    buffers: list[int]
    """Bytes of each buffer."""
    count: int
    """The execution count of the running cell."""
    files: dict[str, tuple[int, str]]
    """Execution counts and sources of the cells that define functions, for tracebacks."""
    seconds: float
    """Time limit of the code."""
    offline: bool
    """Whether to deny network access."""
    more: bool
    """Whether more jobs may follow, which use the variables of this one."""


class Reply(TypedDict):
    """The result of a job."""

    outputs: list[Json]
    """nbformat outputs."""
    error: list[str]
    """Name and text of the error, if the code failed."""
    changes: str
    """The variables that the code made or changed, for the model."""
    total: list[str]
    """The variables that all jobs changed, in a few words each; [] for a single job."""
    failed: dict[str, str]
    """Variables that could not be read from their pickles, and why."""
    networked: bool
    """Whether the code used the network."""


def main() -> None:
    """Read a job from stdin, run it, print the result and end the process."""
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    start: Start = json.loads(source.readline())
    waiting = threading.Timer(start["idle"], os._exit, (0,))
    waiting.daemon = True
    waiting.start()
    shell = _prepare(start)
    line = source.readline()
    waiting.cancel()
    if not line:
        os._exit(0)
    printed = _redirect()
    while line:
        job: Job = json.loads(line)
        target.write(_reply(shell, job, source, printed) + b"\n")
        target.flush()
        line = source.readline() if job["more"] else b""
    os._exit(0)


def _reply(shell: Shell, job: Job, source: BinaryIO, printed: BinaryIO) -> bytes:
    """Run a job and return its reply as JSON."""
    try:
        reply = json.dumps(_run(shell, job, source, printed)).encode()
    except MemoryError:
        reply = b""
    if reply and len(reply) <= MOST_REPLY:
        return reply
    why = "its output is too large" if reply else "it needs more than 2 GB of memory"
    error = ["MemoryError", why]
    nothing = Reply(outputs=[], error=error, changes="", total=[], failed={}, networked=False)
    return json.dumps(nothing).encode()


def _prepare(start: Start) -> Shell:
    """Import modules and return a shell like the kernel's, without history and profile."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    folder = tempfile.mkdtemp(prefix="hermes-copy-")
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    if start["fonts"]:
        os.environ["MPLCONFIGDIR"] = folder
        for name, text in start["fonts"].items():
            Path(folder, Path(name).name).write_text(text, encoding="utf-8")
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    shell: Foreign = InteractiveShell.instance(config=config, ipython_dir=folder)
    sys.path[:] = start["path"]
    for name in (
        "hermes_nb.notebook.execute.nested",
        "hermes_nb.notebook.variables",
        "hermes_nb.safety.policy",
        *start["modules"],
    ):
        with suppress(Exception):
            importlib.import_module(name)
    shutil.rmtree(folder, ignore_errors=True)
    return shell  # type: ignore[no-any-return]


def _redirect() -> BinaryIO:
    """Let programs that the code starts write to a file instead of the reply; return it."""
    printed = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process ends
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((null, 0), (printed.fileno(), 1), (printed.fileno(), 2)):
        os.dup2(descriptor, number)
    return printed


def _run(shell: Shell, job: Job, source: BinaryIO, printed: BinaryIO) -> Reply:
    head = source.read(job["head"])
    buffers = [_read(source, size) for size in job["buffers"]]
    _limit()
    shell.execution_count = job["count"]
    for name, (count, text) in job["files"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        shell.compile._filename_map[name] = count  # there is no public API
    failed = take_over(job["names"], head, buffers, shell.user_ns)
    run = execute(
        shell,
        job["code"],
        timeout=job["seconds"],
        offline=job["offline"],
        place=Place(turn=1),  # so that changes are noted
    )
    done = asyncio.run(run)
    printed.seek(0)
    text = head_tail(printed.read(_PRINTED * 4).decode("utf-8", "replace"), _PRINTED)
    printed.seek(0)
    printed.truncate()
    stream: list[Json] = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
    return Reply(
        outputs=stream + list(done.outputs),
        error=[done.error.ename, done.error.evalue] if done.error else [],
        changes=mention(shell, done.variables),
        total=[*map(brief_change, changes(shell, "", 1))] if job["more"] else [],
        failed=failed,
        networked=done.networked,
    )


def _read(source: BinaryIO, size: int) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        view = view[source.readinto(view) or size :]  # type: ignore[attr-defined]
    return buffer


def _limit() -> None:
    if sys.platform == "win32":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
