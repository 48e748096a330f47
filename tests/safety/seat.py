"""A shell with a scripted model, and somebody at the keyboard who answers every question alike."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Place, Tool
from hermes_nb.models.scripted import ScriptedModel, Step
from hermes_nb.notebook.cell_tools import notebook_tools
from hermes_nb.notebook.commands.table import find, perform
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.execute import network
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.safety.marks import marks_of
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

QUIET = "memory:\n  nudge_interval: 0\nskills:\n  creation_nudge_interval: 0\n"
"""No reviews but those that a story has."""
NAMES = ("HERMES_HOME", "HERMES_NB_NOTEBOOK", "HERMES_NB_APPROVE")


def fresh_shell() -> InteractiveShell:
    """Return this process's shell, without a history."""
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    return InteractiveShell.instance(config=config)


def restarted() -> None:
    """Forget what code has loaded and left behind, as a restarted kernel does."""
    network.trust()
    for known in (network._trusted, network._announced, network._names, network._threads):
        known.clear()


class Keyboard(io.StringIO):
    """A terminal's input: counts the questions; an answer of None means that nobody is there."""

    def __init__(self, answer: str | None) -> None:
        super().__init__()
        self.answer = answer
        self.asked = 0

    def isatty(self) -> bool:
        return self.answer is not None

    def readline(self, *_: object) -> str:
        self.asked += 1
        return f"{self.answer}\n"


class Seat:
    """One notebook in a folder of its own; `home` and `work` are its directories."""

    def __init__(self, shell, folder: Path, *, mode: str, answer: str | None) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir(parents=True, mode=0o700)
        self.work.mkdir()
        (self.home / "config.yaml").write_text(QUIET)
        self.shell, self.mode = shell, mode
        self.keyboard = Keyboard(answer)
        self.notebook = self.work / "analysis.ipynb"
        nbformat.write(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", id="first")]),
            self.notebook,
        )
        self.model = ScriptedModel([])
        self.shown: list[str] = []
        self._printed: list[io.StringIO] = []
        self._agent: KernelAgent | None = None

    @property
    def agent(self) -> KernelAgent:
        """The agent, made on first use, so that what it is to find can be written before."""
        if self._agent is None:
            self._agent = KernelAgent(self.shell, say=self.shown.append)
            self._agent.configure("approve", self.mode)
            self._agent.use(self.model)
            self.offer()
        return self._agent

    def offer(self, *tools: Tool) -> None:
        """Let the agent use these tools of the user's, and the notebook's."""

        async def document(_place: Place) -> FileDocument:
            return FileDocument(self.notebook)

        foreign = marks_of(self.home).holds_text

        self.agent.use_tools([*notebook_tools(self.shell, document, foreign=foreign), *tools])

    def run(self, code: str) -> None:
        """Run a cell of the user's."""
        with self._at_it():
            self.shell.run_cell(code, silent=True)

    def turn(self, prompt: str, *steps: Step) -> int:
        """Take a turn; return how many questions it asked."""
        before = self.keyboard.asked
        self.model.steps[len(self.model.requests) :] = [*steps, *["Done."] * 4]
        with self._at_it():
            asyncio.run(self.agent.ask(prompt))
        return self.keyboard.asked - before

    def command(self, line: str) -> str:
        """Run a command of `%hermes`; return what it shows."""
        found = find(line)
        assert found is not None
        with self._at_it():
            return asyncio.run(perform(found[0], self.agent, found[1]))

    def said(self) -> str:
        """Return everything that was shown to the user."""
        return "\n".join([*self.shown, *(each.getvalue() for each in self._printed)])

    def look_back(self, *steps: Step) -> None:
        """Have a review of the conversation."""
        self.model.steps[len(self.model.requests) :] = [*steps, "Done."]
        assert self.agent.session is not None
        assert self.agent.reviews.begin(self.agent.session, "both")
        self.agent.reviews.wait(30)

    @property
    def results(self) -> list[Message]:
        """What the calls answered."""
        session = self.agent.session
        return [m for m in session.messages if m.role == "tool"] if session else []

    def kept(self, name: str) -> str:
        """What a file of memory holds."""
        path = self.home / "memories" / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    @contextmanager
    def _at_it(self) -> Iterator[None]:
        stdin, cwd = sys.stdin, Path.cwd()
        sys.stdin = self.keyboard
        os.chdir(self.work)
        try:
            self._printed.append(io.StringIO())
            with redirect_stdout(self._printed[-1]):
                yield
        finally:
            sys.stdin = stdin
            os.chdir(cwd)


@contextmanager
def seated(shell, folder: Path, *, mode: str = "ask", answer: str | None = "n") -> Iterator[Seat]:
    """Yield a seat; the environment names its home and notebook meanwhile."""
    before = {name: os.environ.pop(name, None) for name in NAMES}
    seat = Seat(shell, folder, mode=mode, answer=answer)
    os.environ |= {"HERMES_HOME": str(seat.home), "HERMES_NB_NOTEBOOK": str(seat.notebook)}
    known = set(shell.user_ns)
    restarted()
    network.watch_cells(shell)
    try:
        yield seat
    finally:
        restarted()
        seat.close()
        for name in set(shell.user_ns) - known:
            del shell.user_ns[name]
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class Canary:
    """A server that remembers every request, as somebody's on the network would."""

    def __init__(self) -> None:
        canary = self
        self.heard: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                canary.heard.append(self.path)
                body = b"touch PWNED\n"
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
