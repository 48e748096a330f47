"""A real kernel that other programs may use, and the official client of MCP in front of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, Implementation

from tests.kernels import Kernel, Result, kernel

NOTEBOOK = "analysis.ipynb"
LOOP = "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    sum(range(1000))"
"""A cell that computes until the file `go` exists."""
AWAITING = """
import asyncio, pathlib
from hermes_nb.notebook.execute.code_lock import code_lock
lock = code_lock(get_ipython())._lock
while not pathlib.Path("go").exists():
    if lock._waiters:
        pathlib.Path("began").touch()
    await asyncio.sleep(0.01)
"""
"""A cell that awaits until the file `go` exists; `began` exists once a call waits for it."""
TRIES = [
    ("run_python", {"code": "open('got', 'w')"}),
    ("insert_cell", {"source": "open('got', 'w')"}),
    ("edit_cell", {"id": "cell-0", "new": "open('got', 'w')"}),
    ("delete_cell", {"id": "cell-0"}),
    ("move_cell", {"id": "cell-0"}),
    ("run_cell", {"id": "cell-0"}),
    ("run_cells", {"ids": ["cell-0"]}),
    ("undo", {}),
]
"""Calls that change something."""
TURN = """
from hermes_nb import use_model
from hermes_nb.models.scripted import ScriptedModel, call
import pathlib
use_model(ScriptedModel([call("run_python", code='''
import asyncio, pathlib
pathlib.Path("began").touch()
while not pathlib.Path("go").exists():
    await asyncio.sleep(0.01)
'''), "done"]))
"""
"""A turn whose code runs until the file `go` exists; `began` exists from then on."""


@dataclass
class Served:
    """A kernel with a notebook's file, and the environment of programs beside it."""

    kernel: Kernel
    path: Path
    env: dict[str, str]

    def serve(self, options: str = "") -> Result:
        """Accept calls, as a user would."""
        return self.kernel.run(f"%hermes serve {options}")

    def reset(self) -> None:
        """Write the notebook again, and remove what a test has left."""
        cells = [nbformat.v4.new_code_cell("oak = 1", id="cell-0")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), self.path)
        for name in ("go", "began", "got"):
            (self.path.parent / name).unlink(missing_ok=True)

    @property
    def sources(self) -> list[str]:
        """The notebook's cells, as the file has them."""
        return [cell.source for cell in nbformat.read(self.path, as_version=4).cells]

    @property
    def socket(self) -> Path:
        (found,) = Path(self.env["JUPYTER_RUNTIME_DIR"]).glob("hermes_nb/*.sock")
        return found


@contextmanager
def served(folder: Path, home: Path, **more: str) -> Iterator[Served]:
    """Start a kernel whose notebook is a file that nobody has open."""
    path = folder / NOTEBOOK
    env = {**os.environ, "HERMES_HOME": str(home), "HERMES_NB_NOTEBOOK": str(path), **more}
    env |= {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "run")}
    env.pop("PYTEST_CURRENT_TEST", None)
    with kernel(env, cwd=str(folder)) as running:
        assert not running.run("%load_ext hermes_nb\noak = 1").error
        found = Served(running, path, env)
        found.reset()
        yield found


@asynccontextmanager
async def client(env: Mapping[str, str], *words: str) -> AsyncIterator[ClientSession]:
    """Start `jupyter hermes mcp` as agents do, and connect to it."""
    command = ["-m", "hermes_nb.cli", "mcp", *words]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(env))
    me = Implementation(name="claude code", version="1")
    async with (
        stdio_client(server) as (read, write),
        ClientSession(read, write, client_info=me) as session,
    ):
        await asyncio.wait_for(session.initialize(), 30)
        yield session


def text(result: CallToolResult) -> str:
    """Return a result's text."""
    return "\n".join(part.text for part in result.content if part.type == "text")


async def call(session: ClientSession, name: str, **arguments: Any) -> str:
    """Return the text of a call that succeeds."""
    result = await asyncio.wait_for(session.call_tool(name, arguments), 60)
    assert not result.isError, text(result)
    return text(result)
