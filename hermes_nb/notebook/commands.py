"""What `%hermes COMMAND` does: each command is a function from its words to Markdown to show."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook import knowledge_commands as known
from hermes_nb.notebook import session_commands as sessions
from hermes_nb.notebook import window_commands as window
from hermes_nb.notebook.cassette_commands import cassette
from hermes_nb.notebook.checks import doctor
from hermes_nb.notebook.panel_commands import panel
from hermes_nb.notebook.repair import explain_prompt, fix_prompt
from hermes_nb.notebook.resident import Resident
from hermes_nb.notebook.undoing import diff_command, undo_command
from hermes_nb.notebook.wording import grid
from hermes_nb.safety.markup import code_span

Run = Callable[[Resident, str], "str | Awaitable[str]"]
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


async def fix(resident: Resident, words: str) -> str:
    """Take a turn that mends the cell which failed last."""
    await resident.ask(fix_prompt(resident.shell, words))
    return ""


async def explain(resident: Resident, words: str) -> str:
    """Take a turn that explains the last error, or else the last cell."""
    above = await resident.desk.cell_above()
    await resident.ask(explain_prompt(resident.shell, above=above, wish=words))
    return ""


def help_(_resident: Resident, _words: str) -> str:
    """List the commands."""
    rows = [
        (code_span(f"%hermes {name} {command.usage}".strip()), command.about)
        for name, command in COMMANDS.items()
    ]
    head = "`%%hermes` sends the cell as a prompt, `%hermes PROMPT` a line."
    return f"{head}\n\n{grid(('command', ''), rows)}\n\n`%%hermes?` shows the options of a turn."


COMMANDS = {
    "status": Command(
        "", "model, session, tokens, settings and where they come from", sessions.status
    ),
    "panel": Command(
        "[memory, skills, context or session]", "all of this at the side of the page", panel
    ),
    "last": Command("", "the last turn once more", sessions.last),
    "new": Command("", "end this session; the next turn starts another", sessions.new),
    "resume": Command("[ID or TITLE]", "go on with an earlier session", sessions.resume),
    "sessions": Command("", "recent sessions", sessions.sessions),
    "search": Command("QUERY", "find what was said in any session", sessions.search),
    "history": Command("[ID or TITLE]", "what was said in a session", sessions.history),
    "export": Command(
        "[markdown, notebook or jsonl] [ID or TITLE]",
        "write a session into a file, without secrets",
        sessions.export_,
    ),
    "memory": Command(
        "[show, add, edit, remove or undo]", "what Hermes keeps in mind about you", known.memory
    ),
    "skills": Command(
        "[show, enable, disable, delete, undo or trust] [NAME]",
        "procedures it follows, yours and its own",
        known.skills,
    ),
    "trust": Command(
        "[NAME or --forget PATH]", "files that were not loaded as they stand", known.trust
    ),
    "context": Command("[LAYER]", "what fills the window, part by part", window.context),
    "compress": Command("[FOCUS or --undo]", "make the conversation shorter", window.compress),
    "reload": Command("", "build the system prompt anew", window.reload),
    "model": Command(
        "[NAME]", "show or choose the model; `embedded` is the built-in one", sessions.model
    ),
    "tools": Command("[NAMES or all]", "show the tools, or switch to some of them", sessions.tools),
    "approve": Command(
        "[ask, edits, all or never]", "what runs without a question", sessions.approve
    ),
    "fix": Command("[WISH]", "mend the cell that failed last and run it again", fix),
    "explain": Command("[WISH]", "explain the last error, or else the last cell", explain),
    "undo": Command("[TURN] [--force]", "take back what a turn changed", undo_command),
    "diff": Command("[TURN]", "what a turn changed, in cells and files", diff_command),
    "cassette": Command(
        "[status, record, replay, auto, off or prune]",
        "record what the model says, and replay it without one",
        cassette,
    ),
    "doctor": Command("", "check model, home, front end and sandbox", doctor),
    "help": Command("", "this list", help_),
}
