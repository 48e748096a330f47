"""What `%hermes COMMAND` does: each command is a function from its words to Markdown to show."""

from __future__ import annotations

import difflib
import inspect
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import hermes_nb
from hermes_nb.app.config import APPROVE_MODES
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.protocols import StoredSession
from hermes_nb.core.text import one_line
from hermes_nb.notebook.repair import explain_prompt, fix_prompt
from hermes_nb.notebook.resident import Resident
from hermes_nb.notebook.transcript import amount
from hermes_nb.notebook.undoing import diff_command, undo_command
from hermes_nb.notebook.view import can_ask, has_kernel
from hermes_nb.safety.markup import code_span, escape

Run = Callable[[Resident, str], "str | Awaitable[str]"]
LISTED_SESSIONS = 15
CLOSE_ENOUGH = 0.7
"""How alike (0 to 1) a lone word must be to a command's name to count as a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what it takes, what it is for, and what it does."""

    usage: str
    about: str
    run: Run


def find(line: str) -> tuple[Command, str] | None:
    """Return the command that a magic line names and its words, or None for a prompt.

    Raises `ConfigError` for a lone word that looks like a misspelt command.
    """
    word, _, rest = line.strip().partition(" ")
    if word in COMMANDS:
        return COMMANDS[word], rest.strip()
    if word and not rest and not word.startswith("-"):
        near = difflib.get_close_matches(word.lower(), COMMANDS, n=1, cutoff=CLOSE_ENOUGH)
        if near:
            message = (
                f"there is no command {word!r}; did you mean `%hermes {near[0]}`? "
                f"To send it as a prompt: `%hermes -- {word}`"
            )
            raise ConfigError(message)
    return None


async def perform(command: Command, resident: Resident, words: str) -> str:
    """Run a command and return what to show."""
    result = command.run(resident, words)
    return await result if inspect.isawaitable(result) else result


def status(resident: Resident, _words: str) -> str:
    """Return what the next turn would run with, and what the session has used."""
    settings = resident.settings()
    rows = [
        ("model", resident.model_name or settings.endpoint.model or "chosen at the first turn"),
        ("approvals", settings.approve),
        ("requests a turn", str(settings.max_requests)),
        ("home", str(settings.home)),
        ("notebook", resident.notebook or "unknown"),
    ]
    if resident.session is not None:
        used = resident.session.usage
        rows += [
            ("session", resident.session.id),
            ("messages", str(len(resident.session.messages))),
            ("prompt now", f"about {amount(resident.session.agent.prompt_tokens())} tokens"),
            (
                "sent here",
                f"{used.requests} requests, {amount(used.input)} in "
                f"({amount(used.cached)} cached), {amount(used.output)} out",
            ),
        ]
    sources = [f"{name}: {source}" for name, source in settings.sources.items()]
    rows.append(("set by", "; ".join(sources) or "defaults"))
    return _table(rows)


def last(resident: Resident, _words: str) -> str:
    """Return the last turn's view again: the kernel has it even if a page reload lost it."""
    if resident.last is None:
        message = "there has been no turn in this kernel yet"
        raise ConfigError(message)
    return resident.last.finished()


def new(resident: Resident, _words: str) -> str:
    """End the session."""
    resident.new()
    return "The next turn starts a new session."


def resume(resident: Resident, words: str) -> str:
    """Go on with an earlier session."""
    session = resident.resume(words)
    return f"Resumed session {code_span(session.id)} with {len(session.messages)} messages."


def sessions(resident: Resident, _words: str) -> str:
    """List recent sessions."""
    found = resident.store.sessions(limit=LISTED_SESSIONS)
    if not found:
        return "There are no sessions yet."
    current = resident.session.id if resident.session else ""
    lines = ["| session | notebook | messages | last used | title |", "|---|---|---|---|---|"]
    lines += [_session_row(stored, current) for stored in found]
    return "\n".join(lines)


def model(resident: Resident, words: str) -> str:
    """Show or choose the model."""
    if words:
        resident.choose_model(words)
        return f"From the next turn on: {code_span(words)}. The conversation stays."
    name = resident.model_name or resident.settings().endpoint.model
    return f"The model is {code_span(name)}." if name else "It is chosen at the first turn."


def tools(resident: Resident, words: str) -> str:
    """Show the tools, or choose among them."""
    chosen = resident.choose_tools(words) if words else resident.choose_tools("")
    lines = ["| tool | toolset | risk | what it does |", "|---|---|---|---|"]
    lines += [
        f"| {code_span(tool.name)} | {tool.toolset} | {tool.risk.value} |"
        f" {escape(one_line(tool.description, 80))} |"
        for tool in chosen
    ]
    return "\n".join(lines)


def approve(resident: Resident, words: str) -> str:
    """Show or set the approval mode."""
    if words:
        resident.choose_approval(words)
    return f"Approvals: **{resident.settings().approve}** (of {', '.join(APPROVE_MODES)})."


async def fix(resident: Resident, words: str) -> str:
    """Take a turn that mends the cell which failed last."""
    await resident.ask(fix_prompt(resident.shell, words))
    return ""


async def explain(resident: Resident, words: str) -> str:
    """Take a turn that explains the last error, or else the last cell."""
    await resident.ask(explain_prompt(resident.shell, wish=words))
    return ""


async def doctor(resident: Resident, _words: str) -> str:
    """Check what a turn needs and say what to do about what is missing."""
    checks = (_check_versions, _check_model, _check_home, _check_front_end, _check_sandbox)
    rows = []
    for check in checks:
        try:
            row = check(resident)
            rows.append(await row if inspect.isawaitable(row) else row)
        except HermesError as error:
            rows.append((check.__name__.removeprefix("_check_"), f"✗ {error}"))
    return _table(rows)


def help_(_resident: Resident, _words: str) -> str:
    """List the commands."""
    lines = ["`%%hermes` sends the cell as a prompt, `%hermes PROMPT` a line.", ""]
    lines += ["| command | |", "|---|---|"]
    lines += [
        f"| {code_span(f'%hermes {name} {command.usage}'.strip())} | {command.about} |"
        for name, command in COMMANDS.items()
    ]
    lines += ["", "`%%hermes?` shows the options of a turn."]
    return "\n".join(lines)


COMMANDS = {
    "status": Command("", "model, session, tokens, settings and where they come from", status),
    "last": Command("", "the last turn once more", last),
    "new": Command("", "end this session; the next turn starts another", new),
    "resume": Command("[ID or TITLE]", "go on with an earlier session", resume),
    "sessions": Command("", "recent sessions", sessions),
    "model": Command("[NAME]", "show or choose the model; `embedded` is the built-in one", model),
    "tools": Command("[NAMES or all]", "show the tools, or switch to some of them", tools),
    "approve": Command("[ask, edits, all or never]", "what runs without a question", approve),
    "fix": Command("[WISH]", "mend the cell that failed last and run it again", fix),
    "explain": Command("[WISH]", "explain the last error, or else the last cell", explain),
    "undo": Command("[TURN] [--force]", "take back what a turn changed", undo_command),
    "diff": Command("[TURN]", "what a turn changed, in cells and files", diff_command),
    "doctor": Command("", "check model, home, front end and sandbox", doctor),
    "help": Command("", "this list", help_),
}


def _check_versions(_resident: Resident) -> tuple[str, str]:
    import IPython

    python = ".".join(map(str, sys.version_info[:3]))
    return (
        "versions",
        f"✓ hermes_nb {hermes_nb.__version__}, IPython {IPython.__version__}, {python}",
    )


def _check_model(resident: Resident) -> tuple[str, str]:
    from hermes_nb.app.build import build_model, embedded_notice

    found = build_model(resident.settings(), variables=resident.variables)
    if embedded_notice(found) is None:
        return "model", f"✓ {found.name}"
    from hermes_nb.models.weights import locate

    here = "its weights are here" if locate() else "its weights will be fetched, after a question"
    return "model", f"✓ the built-in {found.name}; {here}. For real work set HERMES_NB_MODEL"


def _check_home(resident: Resident) -> tuple[str, str]:
    home = resident.settings().home
    nearest = next(path for path in (home, *home.parents) if path.exists())
    if _writable(nearest):
        return "home", f"✓ {home}" + ("" if home.exists() else ", made by the first turn")
    return "home", f"✗ {nearest} cannot be written; set HERMES_HOME to a folder of yours"


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


async def _check_front_end(resident: Resident) -> tuple[str, str]:
    page = await resident.desk.frontend.probe()
    if page is not None:
        return "front end", f"✓ {page.app} shows {page.path}; cells can be read and edited"
    if resident.desk.frontend.problem:
        return "front end", f"✗ {resident.desk.frontend.problem}"
    kind = "a Jupyter kernel" if has_kernel(resident.shell) else "a terminal"
    if can_ask(resident.shell):
        return "front end", f"✓ {kind}; risky calls ask below the cell"
    return "front end", f"✓ {kind} where nobody can be asked: risky calls need `approve all`"


def _check_sandbox(_resident: Resident) -> tuple[str, str]:
    slow = "" if shutil.which("rg") else "; ripgrep is not installed, so searching is slower"
    return "sandbox", f"– commands run unconfined, as you: approve them with care{slow}"


def _session_row(stored: StoredSession, current: str) -> str:
    mark = " (this one)" if stored.id == current else ""
    name = Path(stored.notebook).name if stored.notebook else "–"
    title = escape(one_line(stored.title, 50))
    cells = (code_span(stored.id) + mark, escape(name), stored.messages, ago(stored.written), title)
    return f"| {' | '.join(map(str, cells))} |"


def _table(rows: list[tuple[str, str]]) -> str:
    lines = ["| | |", "|---|---|"]
    return "\n".join([*lines, *(f"| **{name}** | {escape(value)} |" for name, value in rows)])


def ago(seconds: float) -> str:
    """Return how long ago a time was, as a person says it."""
    passed = max(time.time() - seconds, 0)
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(passed // size)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
