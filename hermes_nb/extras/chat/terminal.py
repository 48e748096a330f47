"""`jupyter hermes chat`: a kernel's agent in a terminal.

Each line is a prompt or, with a leading `/`, a `%hermes` command, or options and a prompt. All
input is run like a cell by the magics in a hidden IPython shell, so sessions, tools, questions and
output are the same as for `%%hermes` in IPython.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from IPython.core.interactiveshell import InteractiveShell
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from traitlets.config import Config

from hermes_nb.agent.session.manager import the_one
from hermes_nb.cli.command import OK, STOPPED, UsageProblem
from hermes_nb.cli.main import ending
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import make_private
from hermes_nb.core.text import number_of
from hermes_nb.notebook.approval import CellApprover, forget_typed
from hermes_nb.notebook.commands.table import Completions, find
from hermes_nb.notebook.completion import completed
from hermes_nb.notebook.interrupt import PATIENCE, StoppedInView
from hermes_nb.notebook.keys import KEY_OPTION
from hermes_nb.notebook.magics import HermesMagics, load
from hermes_nb.notebook.shell import Foreign, hermes_magics
from hermes_nb.safety.redact import redact

NO_TERMINAL = (
    "a chat needs a terminal; `jupyter hermes run PROMPT` asks once, and "
    "`jupyter hermes run -` takes the prompt from standard input"
)
HELP = "/help lists the commands. Alt+Enter starts a new line, Ctrl+C stops a turn, Ctrl+D exits."
AGAIN = "Press Ctrl+C again, or Ctrl+D, to exit."
HISTORY = "chat_history"
"""Input history file in the Hermes directory."""
COMMAND = re.compile(r"(/|%hermes\b)[ \t]*(.*)", re.DOTALL)
LEAVE = ("/exit", "/quit")
OF_NOTEBOOKS = ("@cell:", "@error")
"""References that only work with cells."""
ALONE = 0.4
"""A key answers a question if no other key follows within this many seconds; otherwise it starts a
word."""


def chat(arguments: argparse.Namespace) -> int:
    """Chat until the user leaves, and return the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageProblem(NO_TERMINAL)
    for number in ending():
        signal.signal(number, _exit_on_signal)
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    shell: Foreign = InteractiveShell.instance(config=config)
    shell.set_next_input("")  # the text that a command suggests as the next input
    load(shell)
    magics: HermesMagics = hermes_magics(shell)
    magics.spelled = "/"
    magics.model, magics.approve = arguments.model or "", arguments.approve or ""
    agent = magics.agent
    wished = [name for name in ("model", "approve") if getattr(arguments, name)]
    agent.settings().insist(*wished)
    agent.approver = CellApprover(shell, agent.access.frontend, read=keyed)
    try:
        return asyncio.run(_talk(magics, arguments.session or ""))
    finally:
        magics.close()


def _exit_on_signal(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(STOPPED)


async def _talk(magics: HermesMagics, name: str) -> int:
    """Read and run lines until the user leaves."""
    if name:
        _print_wrapped(await _open_session(magics, name))
    _print_wrapped(HELP)
    session = _prompt(magics)
    stopped, dropped = 0.0, False  # when a turn was stopped; whether the last line was discarded
    while True:
        begun = magics.shell.rl_next_input.removeprefix("%%hermes\n")
        magics.shell.set_next_input("")
        try:
            text = await session.prompt_async("> ", prompt_continuation="  ", default=begun)
        except EOFError:
            return OK
        except KeyboardInterrupt:
            if time.monotonic() - stopped < PATIENCE:
                continue  # the key was meant to stop the turn
            if dropped and not session.default_buffer.text:
                return OK
            dropped = True
            _print_wrapped(AGAIN)
            continue
        if text.strip() in LEAVE:
            return OK
        text, dropped = text.strip("\n"), False
        if text.strip() and not await _handed_over(magics, text):
            stopped = time.monotonic()


async def _open_session(magics: HermesMagics, name: str) -> str:
    """Resume or start a session and return a line about it."""
    agent = magics.agent
    await agent.models.make_ready(agent.note)
    the_one(agent.store, name)  # raises if the name is ambiguous
    found = agent.sessions.join(name, agent.spec(agent.settings()))
    said = number_of(len(found.messages), "message")
    return f"Session {visible(name)}, {said}."


async def _handed_over(magics: HermesMagics, text: str) -> bool:
    """Run a command or a turn and display errors; return False if the user stopped it."""
    try:
        if typed := COMMAND.fullmatch(text):
            line = typed[2].strip()
            await magics.hermes(_checked(magics, line) if typed[1] == "/" else line)
        else:
            await magics.hermes("", text)
    except StoppedInView:
        return False
    except HermesError as error:
        message = redact(visible(str(error), lines=True)).replace("%hermes ", "/").replace("`", "")
        _print_wrapped(message)
        return message != "stopped"
    except Exception:  # noqa: BLE001 - displayed as in IPython, and the chat continues
        magics.shell.showtraceback()
    return True


def _print_wrapped(text: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    for line in text.split("\n"):
        print(textwrap.fill(line, width, break_long_words=False))


def _checked(magics: HermesMagics, line: str) -> str:
    """Return the line after a `/`; raise `ConfigError` if it names no command and no skill."""
    if line and not line.startswith("-") and find(line) is None:
        name = line.split(maxsplit=1)[0]
        if any(name == skill.name for skill in magics.agent.knowledge.library.list()):
            return f"skill {line}"
        what = f"there is no command /{name}; /help lists them"
        raise ConfigError(f"{what}. To send it as a prompt, put a space before the slash")
    return line


def _prompt(magics: HermesMagics) -> PromptSession[str]:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)  # not in the history search

    @keys.add("enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        completer=Names(magics),
        history=History(magics.agent.settings().home / HISTORY),
        key_bindings=keys,
        multiline=True,
        enable_open_in_editor=True,
        enable_suspend=True,
    )


class History(FileHistory):
    """The input history; a line that may contain an API key is never stored, not even in memory."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self._file = file

    def append_string(self, string: str) -> None:
        if redact(string) == string and not KEY_OPTION.search(string):
            super().append_string(string)

    def store_string(self, string: str) -> None:
        with suppress(OSError):  # if the directory is read-only, the history is not saved
            make_private(self._file.parent)
            os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))
            super().store_string(string)


class Names(Completer):
    """Completes commands, their arguments, and `@` references in prompts."""

    def __init__(self, magics: HermesMagics) -> None:
        self._completions = Completions(magics)
        self._shell = magics.shell

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        found = completed(text, self._shell, Path(), self._completions.servers)
        if found is None and (typed := COMMAND.fullmatch(text)):
            found = self._completions.offered(f"%hermes {typed[2]}", first=False)
        fragment, words = found or ("", [])
        meant = (word for word in words if word not in OF_NOTEBOOKS)
        return [Completion(word, start_position=-len(fragment)) for word in meant]


async def keyed(question: str) -> str:
    """Return the bracketed key that answers a question, or the line typed instead.

    Input typed before the question is discarded. Ctrl+C stops the turn.
    """
    keys, session = KeyBindings(), PromptSession[str]()
    empty = Condition(lambda: not get_app().current_buffer.text)
    for key in re.findall(r"\[(\w)\]", question.rpartition("\n")[2]):  # the choices come before it

        @keys.add(key, filter=empty)
        def _(event: KeyPressEvent) -> None:
            event.app.exit(result=event.data, style="")

        @keys.add(key, "<any>", filter=empty)
        def _(event: KeyPressEvent) -> None:
            first, second = event.key_sequence
            event.current_buffer.insert_text(first.data)
            event.key_processor.feed(second, first=True)

    session.app.timeoutlen = ALONE
    clear_typeahead(session.input)
    forget_typed()
    try:
        return await session.prompt_async(question, key_bindings=keys)
    except EOFError:
        return ""
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)  # handled by the turn as a stop
        await asyncio.sleep(PATIENCE)
        return ""
