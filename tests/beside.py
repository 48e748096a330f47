"""A kernel whose cells run next to a turn, with each output in the cell where it appears."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
from hermes_nb.notebook.document.document import source_hash
from hermes_nb.notebook.frontend import PROTOCOL

from tests.kernels import Kernel, kernel

SETUP = """
%load_ext hermes_nb
import asyncio, threading, time
import hermes_nb.notebook.frontend as frontend
from hermes_nb import use_model
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.shell import hermes_magics
frontend.QUICK = frontend.SILENT = 0.05
def plays(*steps, delay=0.05):
    use_model(ScriptedModel(list(steps), delay=delay))
def plays_by_prompt(scripts, delay=0.05):
    def step(request):
        first = [m.text.split("\\n")[0] if m.role == "user" else "" for m in request.messages]
        at = max(n for n, text in enumerate(first) if text in scripts)
        after = request.messages[at:]
        added = [m.text.splitlines()[-1] for m in after if m.text.startswith("[The user adds")]
        answer = scripts[first[at]][sum(m.role == "assistant" for m in after)]
        return answer(added) if callable(answer) else answer
    use_model(ScriptedModel([step] * 10_000, delay=delay))
def code(text):
    return call("run_python", code=text)
def agent():
    return hermes_magics(get_ipython()).agent
"""
ASK = "%%hermes --background --approve all\n"
PINS = {"7.4": "", "6.31": "ipykernel==6.31.0 nest-asyncio==1.6.0"}
"""The tested versions of ipykernel; the first is the installed one. 7.1 is not among them: it loses
messages if two cells arrive while its loop is busy, also without Hermes."""


class BesideKernel:
    """Runs cells without waiting for them, as a page does."""

    def __init__(self, running: Kernel) -> None:
        self.kernel = running
        self.outputs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.errors: dict[str, str] = {}
        self.count: dict[str, int] = {}
        self.order: list[str] = []
        self.page = False
        self.asked: dict[str, dict[str, Any]] = {}  # the open questions, by cell, if `page` is set
        self.notebook: dict[str, str] = {}  # the page's cells: id and source, if `page` is set
        self._boxes: dict[str, tuple[str, str]] = {}
        self._cells: dict[str, str] = {}
        self._done: set[str] = set()

    def send(self, code: str, cell: str) -> str:
        """Send a cell without waiting for it; return its name."""
        client = self.kernel.client
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": True, "stop_on_error": False}
        message = client.session.msg("execute_request", content, metadata={"cellId": cell})
        self.outputs.pop(cell, None)
        self._done.discard(cell)
        self._cells[message["header"]["msg_id"]] = cell
        client.shell_channel.send(message)
        return cell

    def run(self, code: str, cell: str = "other") -> str:
        """Run a cell to its end and return its text."""
        self.send(code, cell)
        self.until(lambda: cell in self._done)
        return self.text(cell)

    def until(self, condition: Callable[[], object], seconds: float = 40) -> None:
        """Receive messages until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{dict(self.outputs)} {self.errors}"[-3000:])
            self._receive(0.02)

    def rest(self, seconds: float) -> None:
        """Receive messages for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._receive(0.02)

    def done(self, cell: str) -> bool:
        """Return whether a cell has ended."""
        return cell in self._done

    def text(self, cell: str) -> str:
        """Return the text of a cell's outputs, in order, as last updated."""
        return "\n".join(each["text"] for each in self.outputs[cell])

    def control(self, **asked: str) -> dict[str, Any]:
        """Send a page's message on the control channel; return the reply."""
        client = self.kernel.client
        message = client.session.msg("comm_info_request", {"hermes": asked})
        client.control_channel.send(message)
        while True:
            reply = client.get_control_msg(timeout=20)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply["content"]

    def interrupt(self) -> None:
        """Press the stop button."""
        self.kernel.manager.interrupt_kernel()

    def _receive(self, timeout: float) -> None:
        try:
            message = self.kernel.client.get_iopub_msg(timeout=timeout)
        except queue.Empty:
            return
        kind, content = message["msg_type"], message["content"]
        cell = self._cells.get(message["parent_header"].get("msg_id"), "")
        if kind == "status" and content["execution_state"] == "idle":
            self._done.add(cell)
        elif kind == "execute_input":
            self.count[cell] = content["execution_count"]
            self.order.append(cell)
        elif kind == "stream":
            last = self.outputs[cell][-1:]
            if last and last[0]["kind"] == kind:
                last[0]["text"] += content["text"]
            else:
                self.outputs[cell].append({"kind": kind, "text": content["text"]})
        elif kind == "error":
            self.errors[cell] = content["ename"]
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self._display(cell, kind, content)
        elif self.page and kind == "comm_open" and content["target_name"] == "hermes_nb":
            facts = {"path": "a.ipynb", "name": "page", "holds": True, "protocol": PROTOCOL}
            facts["client"] = self.kernel.client.session.session
            self._tell(content["comm_id"], {"hello": facts})
        elif self.page and kind == "comm_msg" and content["data"].get("to") == "page":
            self._page(content["comm_id"], content["data"])

    def _page(self, comm: str, request: dict[str, Any]) -> None:
        if request["op"] == "ask":
            cell = request["args"]["cell"]
            self.asked[cell], self._boxes[cell] = request["args"], (comm, request["id"])
        elif request["id"]:
            every = [*map(self._described, self.notebook)]
            one = next((c for c in every if c["id"] == request["args"].get("id")), {})
            found = every if request["op"] == "list" else one
            self._tell(comm, {"id": request["id"], "result": found})

    def _described(self, name: str) -> dict[str, Any]:
        source, shown = self.notebook[name], []
        for each in self.outputs[name]:
            shown.append({"output_type": "stream", "name": "stdout", "text": each["text"]})
        return {
            "id": name,
            "index": [*self.notebook].index(name),
            "type": "code",
            "source": source,
            "hash": source_hash(source),
            "metadata": {},
            "outputs": shown,
            "output_count": len(shown),
            "execution_count": self.count.get(name),
            "running": name in self._cells.values() and name not in self._done,
        }

    def answer(self, cell: str, how: str) -> None:
        """Answer the question of a cell."""
        del self.asked[cell]
        comm, number = self._boxes.pop(cell)
        self._tell(comm, {"id": number, "result": {"answer": how}})

    def _tell(self, comm: str, data: dict[str, Any]) -> None:
        client = self.kernel.client
        client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": comm, "data": data}))

    def _display(self, cell: str, kind: str, content: dict[str, Any]) -> None:
        data = content["data"]
        text = "PNG" if "image/png" in data else data.get("text/markdown") or data["text/plain"]
        name = (content.get("transient") or {}).get("display_id") or object()
        shown = {"kind": kind, "text": text, "id": name, "marks": content["metadata"]}
        if kind == "update_display_data":
            for each in (each for outputs in self.outputs.values() for each in outputs):
                if each.get("id") == name:
                    each.update(text=text, marks=content["metadata"])
            return
        self.outputs[cell].append(shown)


@contextmanager
def beside_kernel(folder: Path, version: str = "7.4", **more: str) -> Iterator[BesideKernel]:
    """Start a kernel with that version of ipykernel, with hermes_nb and a scripted model."""
    env = {**os.environ, "HERMES_HOME": str(folder / "home"), "IPYTHONDIR": str(folder / "ipython")}
    if PINS[version]:
        env["PYTHONPATH"] = os.pathsep.join([str(packages(version)), env.get("PYTHONPATH", "")])
    with kernel(env | {"HERMES_NB_CEILING": "all"} | more, cwd=str(folder)) as running:
        cells = BesideKernel(running)
        told = cells.run(SETUP + "import ipykernel; print(ipykernel.__version__)", "setup")
        assert told.splitlines()[-1].startswith(version), cells.errors
        cells.run("plays('Ready.')")
        cells.run("%hermes --approve all Are you ready?", "first")  # the first turn imports
        yield cells


def packages(version: str) -> Path:
    """Return a folder with that version of ipykernel, filled by pip on first use."""
    cache = Path(platformdirs.user_cache_dir("hermes_nb")) / "kernels"
    folder = cache / f"{version}-{sys.version_info[0]}.{sys.version_info[1]}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=cache, prefix="making-"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command = [*pip, "--no-deps", "--target", making, *PINS[version].split()]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    try:
        making.rename(folder)
    except OSError:  # another run was faster
        shutil.rmtree(making)
    return folder


def scripts(*names, n=0):
    """Return a script for each prompt: code that prints its name, then an answer with its name."""
    each = "await asyncio.sleep(0.05)" if n % 2 else "time.sleep(0.05)"
    code = "code(\"print('{0} a'); {1}; print('{0} b'); done.append('{0}')\")"
    made = (
        f"'{name}': [{code.format(name, each)}, 'The answer of {name}. ' * 4, 'Once more, {name}.']"
        for name in names
    )
    return f"{{{', '.join(made)}}}"
