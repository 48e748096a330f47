"""Ask the user before a tool call runs, and before an unconfigured model is used.

Questions appear as buttons if a page answers, otherwise as `input()`, or as text that `%hermes yes`
answers while the turn runs next to the user's cells. If none is possible, the policy decides. The
page renders all text as plain text, never as HTML, and shows the question again after a reload.
Only the answer is saved in the notebook, in the line that shows the call.

On a shared machine, anyone can listen on a well-known port. So a local server is offered together
with its owner's name, and used only after the user accepts it. Downloading the built-in model's
weights also needs approval.

Only the user may raise the approval mode; code that Hermes runs may not. A cell in someone else's
notebook may contain `--approve all`, so the user is asked once for each notebook. In a headless
kernel, only the mode set when the process started applies.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from hermes_nb.agent.approvals import answer_of, unanswered
from hermes_nb.agent.models import found_servers, server_line
from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.agent.settings.sources import CEILING, STARTED, home_directory, within
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json, Message, ToolCall
from hermes_nb.core.protocols import Approval, ApprovalRequest, ChatModel, Preparing
from hermes_nb.core.text import capitalised, number_of, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Content, Risk, Tool
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.display.views import can_draw, show
from hermes_nb.notebook.execute.network import by_call
from hermes_nb.notebook.execute.trial import current_what_if
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.shell import (
    Shell,
    TurnCell,
    can_ask,
    has_kernel,
    running_cell,
    runs_beside,
    turn_cell,
)
from hermes_nb.safety.guard import COPY, MODES, Decision, Guard, Mode
from hermes_nb.safety.markup import code_block, escape
from hermes_nb.safety.provenance import Trust

if TYPE_CHECKING:
    from hermes_nb.models.servers import ServerIdentity
    from hermes_nb.notebook.access import NotebookAccess


REMEDY = "`%hermes approve all` or HERMES_NB_APPROVE=all"
LEFT = (
    "the notebook's page was closed during this turn and nobody could be asked; say what you "
    "wanted to do, so that the user can ask again"
)
ABSENT = 600.0
"""Seconds that a question waits for a disconnected page, for example while a laptop sleeps."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenQuestion:
    """A question of a turn next to the user's cells."""

    request: ApprovalRequest
    cell: TurnCell
    """The turn's cell, below which the question is shown."""
    answered: asyncio.Future[Approval]

    def allow(self, word: str) -> None:
        """Answer with a word of `words`, or "" for an approval; raise `ConfigError` for another."""
        approval = answer_of(
            word or ("" if self.request.choices is not None else "yes"), self.request
        )
        if approval.answer == "deny":
            raise ConfigError(how_to_answer(self.request))
        self.answer(approval)

    def answer(self, approval: Approval) -> None:
        """Pass the answer to the turn; can be called from any thread."""

        def settle() -> None:
            if not self.answered.done():
                self.answered.set_result(approval)

        self.answered.get_loop().call_soon_threadsafe(settle)


class TypedAnswers:
    """Questions that no page shows, of turns next to the user's cells; commands answer them."""

    def __init__(self) -> None:
        self.open: list[OpenQuestion] = []
        self.some = asyncio.Event()
        """Set while a question is open."""

    async def ask(self, request: ApprovalRequest, cell: TurnCell) -> Approval:
        """Show how to answer a displayed question, and wait for `%hermes yes` or `%hermes no`."""
        told = how_to_answer(request)
        show({"text/markdown": told, "text/plain": told.replace("`", "")})
        question = OpenQuestion(request, cell, asyncio.get_running_loop().create_future())
        self.open.append(question)
        self.some.set()
        try:
            return await question.answered
        finally:
            self.open.remove(question)
            if not self.open:
                self.some.clear()

    def question(self, cell: int | None) -> OpenQuestion:
        """Return the open question, of the turn in cell [`cell`] if given; else ConfigError."""
        found = [each for each in self.open if cell in (None, each.cell.count)]
        if not found:
            raise ConfigError(
                "no turn is waiting for an answer; to send it as a prompt, use `%hermes -- yes`"
            )
        if len({each.cell.count for each in found}) > 1:
            cells = ", ".join(f"[{each.cell.count}]" for each in found)
            raise ConfigError(f"several turns ask ({cells}); add `--cell N` to say which one")
        return found[0]


def how_to_answer(request: ApprovalRequest) -> str:
    """Return the commands that answer a question."""
    if request.choices is not None:
        listed = [
            f"{n}. {escape(visible(each))}" for n, each in enumerate(request.choices, start=1)
        ]
        how = "Answer with `%hermes yes` and a number or your own words, or with `%hermes no`."
        return "\n".join([*listed, *([""] if listed else []), how])
    more = {"run": request.runs, "turn": request.turn, "always": request.shape}
    more |= {"outside": request.outside}
    words = [f"`%hermes yes {word}`" for word, offered in more.items() if offered]
    return f"Answer with {', '.join(['`%hermes yes`', *words])} or `%hermes no WHY`."


class CellApprover:
    """Asks below the cell, or denies the call if no one can answer."""

    def __init__(
        self,
        shell: Shell,
        frontend: FrontEnd | None = None,
        *,
        learn: Callable[[Mapping[str, Json]], None] | None = None,
        read: Callable[[str], Awaitable[str | None]] | None = None,
    ) -> None:
        """Create the approver of a kernel.

        `learn` receives the cell that an answer refers to, with its source at that time. `read`
        asks the question if there is no page; None means `ask_user`.
        """
        self._shell = shell
        self._read = read
        self._frontend = frontend or FrontEnd(shell)
        self._learn = learn
        self.typed = TypedAnswers()

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Ask the user about a tool call; without a clear approval, return a denial."""
        if not can_ask(self._shell):
            return Approval("deny", unanswered(request, REMEDY))
        if await self._frontend.present() is not None:
            question = _question(request) | {"cell": running_cell(self._shell)}
            # Another window may have a different version of the cell, so the question itself shows
            # the change.
            given = await self._frontend.hold("ask", ABSENT, {"changes": []}, **question)
            if given is None:
                return Approval("deny", LEFT)
            # A deletion must match the cell that was shown.
            if self._learn is None or request.tool.name != "edit_cell":
                return _chosen(given, request)
            # The cell showed its change together with what the user had typed meanwhile.
            cells = given.get("cells") or ()
            for cell in cells:
                self._learn(cell)
            seen = frozenset(f"cell {cell['id']}" for cell in cells)
            return replace(_chosen(given, request), seen=seen)
        if self._frontend.expected and not self._frontend.problem:
            # In a closed page, `input()` would wait forever.
            return Approval("deny", LEFT)
        if (cell := turn_cell.get()) is not None and cell.over:
            self._show(request)
            return await self.typed.ask(request, cell)
        self._show(request)
        line = question_line(request)
        answer = ask_user(line) if self._read is None else await self._read(line)
        if answer is None:
            return Approval("deny", unanswered(request, REMEDY))
        return answer_of(answer, request)

    def _show(self, request: ApprovalRequest) -> None:
        if request.choices is not None:
            text = visible(request.shown, lines=True)
            show({"text/markdown": escape(text), "text/plain": text})
            return
        title = f"Hermes wants to use {request.tool.name}"
        languages = {"terminal": "bash", "run_python": "python", COPY: "python"}
        language = languages.get(request.tool.name, "text")
        if request.tool.risk is Risk.WRITE:
            language = "diff"
        block = code_block(request.shown, language)
        markdown = f"**{escape(title)}** · {escape(request.why)}\n\n{block}{_scope(request)}"
        text = f"{title} ({request.why}):\n{request.shown}{_scope(request)}"
        plain = visible(text, lines=True)
        if has_kernel(self._shell) or can_draw(sys.stdout):
            show({"text/markdown": markdown, "text/plain": plain})
        else:
            print(plain, flush=True)  # shows the question in a terminal


def ask_user(question: str, read: Callable[[str], str] | None = None) -> str | None:
    """Return the user's typed answer; None at the end of the input, or next to the user's cells.

    This blocks the event loop on purpose. The stop button still raises KeyboardInterrupt here.
    """
    if runs_beside():
        return None
    forget_typed()
    with user_code():
        try:
            return (read or input)(question).strip()
        except EOFError:
            return None


def forget_typed() -> None:
    """Discard input typed into a terminal before the question appeared."""
    with suppress(ImportError, io.UnsupportedOperation):  # Windows; not a terminal
        import termios

        if os.isatty(sys.stdin.fileno()):
            termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _scope(request: ApprovalRequest) -> str:
    """Return a line that describes what "always" would allow."""
    lasts = request.lasting
    return f"\n\nAlways allows {escape(lasts)}." if request.shape and lasts else ""


def question_line(request: ApprovalRequest) -> str:
    """Return the prompt for a question that is answered by typing."""
    if request.choices is not None:
        listed = [f"{n}. {visible(each)}" for n, each in enumerate(request.choices, start=1)]
        numbers = "a number, or " if listed else ""
        return "\n".join([*listed, f"Your answer ({numbers}your own words; empty for none): "])
    run = "and [r]un, " if request.runs else ""
    turn = "in this [t]urn, " if request.turn else ""
    always = "[a]lways, " if request.shape else ""
    outside = "[o]utside the sandbox, " if request.outside else ""
    what = "Allow it" if request.runs else "Run it"
    return f"{what}? [y]es, {run}{turn}{always}{outside}[n]o, or say why not: "


def _chosen(given: Mapping[str, Json], request: ApprovalRequest) -> Approval:
    """Return the answer that a page sent; anything other than a clear approval is a denial."""
    match given.get("answer"):
        case "once" if request.choices is not None:
            text = str(given.get("reason") or "").strip()
            return Approval("once", text) if text else Approval("deny")
        case "once":
            calls = {call.id for call in request.calls}
            denied = {each for each in given.get("denied") or () if each in calls}
            return Approval("once", denied=frozenset(denied))
        case "run" if request.runs:
            return Approval("run")
        case "turn" if request.turn:
            return Approval("turn")
        case "always" if request.shape:
            return Approval("always")
        case "outside" if request.outside:
            return Approval("outside")
        case _:
            return Approval("deny", str(given.get("reason") or ""))


_TITLES = {
    (Risk.EXECUTE, "terminal"): "Run this command?",
    (Risk.EXECUTE, "run_python"): "Run this code?",
    (Risk.EXECUTE, COPY): "Run this code?",
    (Risk.EXECUTE, "run_cells"): "Run these cells?",
    (Risk.EXECUTE, "run_notebook"): "Run this notebook?",
    (Risk.WRITE, "notebook"): "Change this notebook?",
}
"""Question titles, by a tool's risk and its name or toolset."""


_VERBS = {"write_file": "Write", "patch": "Edit", "edit_cell": "Edit", "delete_cell": "Delete"}
"""The verbs of titles that name one file or cell, by tool."""


def _title(request: ApprovalRequest, shown: str) -> str:
    """Return the title of a question, which names what would run or change."""
    tool, first = request.tool, one_line(shown.partition("\n")[0], 80)
    if request.calls:
        return f"Edit {len(request.calls)} cells?"
    if tool.name == "insert_cell":
        count = number_of(str(request.call.arguments.get("source", "")).count("\n") + 1, "line")
        kind, _, place = first.removeprefix("new ").removesuffix(":").partition(" cell ")
        named = re.sub(r"^(below (?:\[\d+\]|cell \d+)).*", r"\1", place)
        return f"Add a {'' if kind == 'code' else f'{kind} '}cell {named}? ({count})"
    if tool.name == "run_cell":
        name = first.removeprefix("# ")
        return f"Run {'cell ' if name.startswith('[') else ''}{name}?"
    if tool.name in _VERBS:
        path = one_line(visible(str(request.call.arguments.get("path", ""))), 80)
        return f"{_VERBS[tool.name]} {path if tool.toolset == 'files' else first}?"
    title = _TITLES.get((tool.risk, tool.name)) or _TITLES.get((tool.risk, tool.toolset))
    return title or f"Use {visible(one_line(tool.name))}?"


def _once(request: ApprovalRequest) -> str:
    """Return the label of the button that allows the call once."""
    if request.calls:
        return f"Keep all {len(request.calls)}"
    names = {"insert_cell": "Add", "edit_cell": "Keep", "delete_cell": "Delete"}
    risks = {Risk.WRITE: "Apply", Risk.EXECUTE: "Run once"}
    return names.get(request.tool.name) or risks.get(request.tool.risk, "Allow once")


def _question(request: ApprovalRequest) -> dict[str, Json]:
    """Return a question as data for the page: plain text, and `lines` with their CSS classes."""
    tool = request.tool
    if request.choices is not None:
        box = _box(request.shown, request.choices, request.nonce)
        return box | {"tool": visible(tool.name)}
    shown = visible(request.shown, lines=True)
    runs = tool.risk is Risk.EXECUTE
    language = ("bash" if tool.name == "terminal" else "python") if runs else ""
    classes = {"+": "hermes-plus", "-": "hermes-minus"} if tool.risk is Risk.WRITE else {}
    return _box(shown, nonce=request.nonce) | {
        "title": _title(request, shown),
        "tool": visible(tool.name),
        "lines": [
            ["" if line.startswith(("--- ", "+++ ")) else classes.get(line[:1], ""), line, marks]
            for line, marks in zip(shown.split("\n"), coloured(shown, language), strict=True)
        ],
        "why": f"{capitalised(visible(request.why, lines=True))}.",
        "once": request.yes or _once(request),
        "run": ("Add and run" if tool.name == "insert_cell" else "Keep and run")
        if request.runs
        else "",
        "turn": "Allow in this turn" if request.turn else "",
        "always": "Always allow in this notebook" if request.shape else "",
        "tip": visible(request.lasting),
        "outside": "Run outside the sandbox" if request.outside else "",
        "changes": [
            change
            for each in request.calls or (request.call,)
            if (change := _change(request, each)) is not None
        ],
    }


def _box(text: str, choices: Sequence[str] | None = None, nonce: str = "") -> dict[str, Json]:
    """Return a question with answers to choose from, as data for the page."""
    return {
        "id": nonce or token_hex(16),
        "title": "Hermes asks",
        "tool": "",
        "lines": [["", line, []] for line in visible(text, lines=True).split("\n")],
        "why": "",
        "choices": None if choices is None else [*map(visible, choices)],
        **dict.fromkeys(("once", "run", "turn", "always", "tip", "outside"), ""),
        "changes": [],
    }


def _change(request: ApprovalRequest, call: ToolCall) -> dict[str, Json] | None:
    """Return the change that the page shows in the cell; None if the call edits no cell."""
    given = call.arguments
    if request.tool.name not in ("edit_cell", "delete_cell") or not given.get("id"):
        return None
    why = visible(request.why, lines=True)
    told = {"tool": request.tool.name, "id": str(given["id"]), "why": why, "call": call.id}
    return told | {"old": given.get("old"), "source": given.get("new")}


COLOURED = 200_000
"""Maximum characters of code to highlight."""
_COLOURS = {
    "Comment": "comment",
    "Keyword": "keyword",
    "Operator.Word": "keyword",
    "Name.Builtin": "builtin",
    "Name.Class": "def",
    "Name.Function": "def",
    "Literal.Number": "number",
    "Literal.String": "string",
}
"""Editor theme colour names, by Pygments token type."""


def coloured(text: str, language: str) -> list[list[tuple[str, int, int]]]:
    """Return the coloured ranges of each line as (colour, start, end)."""
    marks: list[list[tuple[str, int, int]]] = [[] for _ in text.split("\n")]
    if not language or len(text) > COLOURED:
        return marks
    from pygments.lexers import get_lexer_by_name  # IPython has it

    line = column = 0
    for _, token, value in get_lexer_by_name(language).get_tokens_unprocessed(text):
        kind = str(token).removeprefix("Token.")
        name = next((c for of, c in _COLOURS.items() if f"{kind}.".startswith(f"{of}.")), "")
        for number, piece in enumerate(value.split("\n")):
            line, column = (line + 1, 0) if number else (line, column)
            if name and piece:
                marks[line].append((name, column, column + len(piece)))
            column += len(piece)
    return marks


Ask = Callable[[str], str | None]
BAR_SECONDS = 0.5
BAR_WIDTH = 30


async def offer_servers(settings: Settings, ask: Ask, declined: set[ServerIdentity]) -> bool:
    """Offer servers found on this machine in a single question; return whether one was accepted.

    Nothing is offered if the settings specify a model or an accepted server responds. An accepted
    server is saved in the home. Declined ones are added to `declined` and not offered again.
    """
    if settings.endpoint.named or settings.cassette == "replay":
        return False
    if await in_thread(found_servers, settings, known=True):
        return False
    found = await in_thread(found_servers, settings, known=False)
    offered = [served for served in found if served.identity not in declined]
    if not offered:
        return False
    from hermes_nb.models.servers import remember

    lines = [f"  {number}. {server_line(served)}" for number, served in enumerate(offered, start=1)]
    question = "\n".join(
        [
            "No model is set up. Found on this machine:",
            *lines,
            "It would receive your prompts, and the cells and files that Hermes reads. "
            f"Use which one from now on? [{'/'.join(str(n + 1) for n in range(len(lines)))}/N] ",
        ]
    )
    answer = (ask(question) or "").strip().lower()
    if len(offered) == 1 and answer in ("y", "yes"):
        answer = "1"
    if answer not in {str(number + 1) for number in range(len(offered))}:
        declined.update(served.identity for served in offered)
        return False
    await in_thread(remember, settings.home, [offered[int(answer) - 1].identity], ())
    return True


async def prepare(
    model: ChatModel,
    shell: Shell,
    settings: Settings,
    note: Callable[[str], None],
) -> None:
    """Prepare a model for its first use, and show its notice once.

    Asks before anything is downloaded; a headless run requires `HERMES_NB_FETCH_WEIGHTS=1` instead.
    Raises `ConfigError`, with the alternatives, if the download is not approved.
    """

    def agreed(question: str) -> bool:
        if settings.fetch_weights or not can_ask(shell):
            return settings.fetch_weights
        return (ask_user(f"{question} [y/N] ") or "").lower() in ("y", "yes")

    if isinstance(model, Preparing):
        bar = _Bar(updates=can_ask(shell))
        try:
            await model.prepare(agreed, bar.at)
        finally:
            bar.close()
    if notice := traits_of(model).notice:
        note(notice)


class _Bar:
    def __init__(self, *, updates: bool) -> None:
        self._updates = updates
        self._drawn = 0.0
        self._lock = threading.Lock()

    def at(self, done: int, total: int) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._updates or (done < total and now - self._drawn < BAR_SECONDS):
                return
            self._drawn = now
            filled = BAR_WIDTH * done // max(total, 1)
            bar = "█" * filled + "░" * (BAR_WIDTH - filled)
            text = f"\r{bar} {done / 1e6:.0f} of {total / 1e6:.0f} MB"
            print(text, end="", flush=True)  # a progress bar in the cell's output

    def close(self) -> None:
        if self._updates and self._drawn:
            print(flush=True)  # ends the bar's line


VARIABLE = "HERMES_NB_APPROVE"
ONLY_CODE = (
    "the user wants to see first what this turn would do, so only run_python and try_python work, "
    "on a copy of the variables"
)
"""The reason other tools that change something are refused in a turn with `--what-if`."""
_LETS: dict[Mode, str] = {"edits": "change files and cells", "all": "run and change anything"}


class KernelGuard(Guard):
    """A kernel's guard: each turn has an approval mode of its own; without a turn, it is `ask`."""

    __slots__ = ()

    @property
    def mode(self) -> Mode:
        """The approval mode of the turn to which the calling code belongs."""
        cell = turn_cell.get()
        return (cell.mode if cell is not None else None) or "ask"

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if (cell := turn_cell.get()) is not None and cell.mode is not None:
            cell.mode = mode

    def decide(
        self,
        tool: Tool,
        arguments: Arguments,
        *,
        messages: Sequence[Message] = (),
        result: str | None = None,
        content: Content | None = None,
    ) -> Decision:
        """Return the decision about a call; in a turn with `--what-if`, code runs on a copy."""
        judge = partial(super().decide, messages=messages, result=result, content=content)
        if current_what_if() is None or tool.name == COPY or tool.toolset == "web":
            return judge(tool, arguments)
        if tool.name == "run_python":
            return judge(replace(tool, name=COPY), arguments)
        risk = tool.risk if tool.risk_of is None else tool.risk_of(arguments)
        if risk is Risk.READ:
            return judge(tool, arguments)
        return Decision(verdict="deny", why=ONLY_CODE)


class Permission:
    """Decides which approval modes the cells of one kernel may choose."""

    def __init__(
        self,
        shell: Shell,
        guard: Guard,
        access: NotebookAccess,
        *,
        began: str,
        note: Callable[[str], None],
    ) -> None:
        """Create the permission of a kernel.

        Args:
            shell: the kernel's IPython shell
            guard: contains the current mode
            access: the kernel's notebook
            began: the mode in the configuration at startup, or "" for none
            note: shows a message to the user
        """
        self._shell = shell
        self._guard = guard
        self._access = access
        self._began = began
        self._note = note
        self._held = 0
        self._answers: dict[tuple[str, Mode], bool] = {}

    def check(self, deed: str = "change the approval mode") -> None:
        """Raise `ConfigError` if called by the agent's code or by a task that it left running.

        `deed` describes the attempted change for the message.
        """
        if self._held or by_call():
            raise ConfigError(f"code that an agent runs cannot {deed}; the user can, in a cell")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run the agent's code in this block, then restore the mode and `HERMES_*` variables."""
        mode, before = self._guard.mode, _ours()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._guard.mode = mode
            for name in _ours().keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)

    async def granted_in_page(self, wanted: Mode) -> Mode:
        """Like `granted`, but ask in the page if there is one."""
        frontend = self._access.frontend
        unknown = CEILING is None and self._known(wanted)[0] is None
        if unknown and await frontend.present() is not None:
            box = _box(self._question(wanted), ["Allow for this notebook", "No"])
            given = await frontend.hold("ask", ABSENT, {}, **box, cell=running_cell(self._shell))
            self._keep(wanted, yes=given is not None and given.get("reason") == box["choices"][0])
        return self.granted(wanted)

    def granted(self, wanted: Mode) -> Mode:
        """Return the mode granted to a cell that requests `wanted`; ask once per notebook."""
        if CEILING is not None:
            if (lower := within(wanted)) != wanted:
                self._note(f"`{wanted}` is above what this kernel allows: `{lower}`.")
            return lower
        yes, started = self._known(wanted)
        if yes is None:
            answer = ask_user(f"{self._question(wanted)} Allow that for this notebook? [y/N] ")
            yes = self._keep(wanted, yes=(answer or "").lower() in ("y", "yes"))
        if yes:
            return wanted
        self._note(
            f"The approval mode stays `{started}`: nobody allowed `{wanted}` for this "
            f"notebook. Set {VARIABLE} where the kernel is started, or answer yes in a notebook."
        )
        return started

    def _known(self, wanted: Mode) -> tuple[bool | None, Mode]:
        """Return whether the notebook may choose a mode, and the mode that applies if it may not.

        The first value is None if the user has to be asked.
        """
        if wanted not in _LETS or not has_kernel(self._shell):
            return True, wanted  # in a terminal, the user types every line
        started = _started(self._began)
        mode, notebook, trust = started.approve, self._access.path, Trust(started.home)
        above = MODES[MODES.index(wanted) :]
        if within(wanted, mode) == wanted or any(
            self._answers.get((notebook, each))
            or (notebook and trust.accepts(notebook, _text(each)))
            for each in above
        ):
            return True, mode
        if (notebook, wanted) in self._answers or not can_ask(self._shell):
            return False, mode
        return None, mode

    def _question(self, wanted: Mode) -> str:
        return (
            f"This cell wants to let Hermes {_LETS[wanted]} without asking (mode {wanted}), in "
            f"{visible(self._access.path) or 'this notebook'}."
        )

    def _keep(self, wanted: Mode, *, yes: bool) -> bool:
        notebook = self._access.path
        self._answers[notebook, wanted] = yes
        if yes and notebook:
            Trust(home_directory()).accept(notebook, _text(wanted))
        return yes


def _started(approve: str = "") -> Settings:
    """Return the settings, with the approval mode of this process's start."""
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return load_settings(
        overrides={"approve": approve or None},
        environ=environ | ({VARIABLE: STARTED} if STARTED else {}),
    )


def allowed_mode(notebook: str) -> Mode:
    """Return the highest approval mode that a notebook's cells may choose without a question."""
    started = _started()
    trust = Trust(started.home)
    kept = [each for each in _LETS if notebook and trust.accepts(notebook, _text(each))]
    return within(max([started.approve, *kept], key=MODES.index))


def _ours() -> dict[str, str]:
    """Return the environment variables that configure Hermes."""
    return {name: value for name, value in os.environ.items() if name.startswith("HERMES_")}


def _text(mode: Mode) -> str:
    return f"cells of this notebook may choose the approval mode {mode}"
