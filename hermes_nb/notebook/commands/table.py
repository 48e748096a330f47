"""The `%hermes` commands: which there are, what they are for, and where what they do is found.

The table is data: completion, help and the reference are made of it, and nothing of what the
commands need is imported before one runs. Each is a function of the agent and its words that
returns Markdown to show.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hermes_nb.core.errors import ConfigError

if TYPE_CHECKING:
    from hermes_nb.notebook.resident import Resident

CLOSE_ENOUGH = 0.7
"""How alike (0 to 1) a word must be to a known one to count as a slip of the pen."""

LONG, LONG_SLIP = 6, 2
"""In words of so many letters, so many may be wrong."""

Names = Literal["sessions", "skills", "models", "tools", "layers", "settings", "commands", "jobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: what it takes, what it is for, and what it does.

    `run` is `module:function`, below `hermes_nb.notebook`. `words` are what its first word may be,
    and `names` the kind of names that it takes: behind a word in `before`, or as its first one.
    """

    usage: str = ""
    about: str
    run: str
    words: tuple[str, ...] = ()
    names: Names | None = None
    before: tuple[str, ...] = ()


def find(line: str) -> tuple[Command, str] | None:
    """Return the command that a magic line names and its words, or None for a prompt.

    Raises `ConfigError` for what looks like a slip of the pen: a lone word, or a word and one that
    a command takes, that is nearly the command; or a command's first word that is nearly one.
    """
    word, *more = line.split(None, 1) or [""]
    rest = more[0].strip() if more else ""
    if word in COMMANDS:
        _check_first(word, COMMANDS[word], rest)
        return COMMANDS[word], rest
    if near := _meant(word, rest):
        message = (
            f"there is no command {word!r}; did you mean `%hermes {f'{near} {rest}'.strip()}`? "
            f"Nothing was sent; `%hermes -- {line.strip()}` sends it as a prompt"
        )
        raise ConfigError(message)
    return None


def _meant(word: str, rest: str) -> str:
    """Return the command that `word` is nearly, of those that take `rest`; "" if there is none."""
    if rest and not word.isalpha():  # `memory, edit` is a part of a sentence
        return ""
    takes = [name for name, command in COMMANDS.items() if not rest or rest in command.words]
    near = [name for name in takes if _is_slip(word.lower(), name)]
    return next(iter(difflib.get_close_matches(word.lower(), near, n=1, cutoff=0)), "")


def _is_slip(typed: str, name: str) -> bool:
    """Say whether a word is a name with letters swapped, or one other (two in a longer word).

    The first letter stays, people get that right, unless it is swapped: `next` is not `context`.
    """
    missing, extra = Counter(name) - Counter(typed), Counter(typed) - Counter(name)
    others = missing.total(), extra.total()
    few = max(others) <= 1 or (sum(others) == LONG_SLIP and len(typed) >= LONG)
    alike = difflib.SequenceMatcher(None, typed, name).ratio() >= CLOSE_ENOUGH
    return not any(others) or (few and alike and typed[:1] == name[:1])


async def perform(command: Command, resident: Resident, words: str) -> str:
    """Run a command and return what to show."""
    module, _, name = command.run.partition(":")
    imported = await asyncio.to_thread(importlib.import_module, f"hermes_nb.notebook.{module}")
    result = getattr(imported, name)(resident, words)
    shown: str = await result if inspect.isawaitable(result) else result
    return shown


def _check_first(name: str, command: Command, words: str) -> None:
    """Raise `ConfigError` for a first word that is nearly one of the command's."""
    first = next(iter(words.split(None, 1)), "")
    if not first or first in command.words or not command.words:
        return
    near = difflib.get_close_matches(first, command.words, n=1, cutoff=CLOSE_ENOUGH)
    if near and (command.names in (None, "skills") or first.startswith("-")):
        message = (
            f"there is no `%hermes {name} {first}`; did you mean `%hermes {name} {near[0]}`? "
            f"`%hermes -- {name} {words}` sends it as a prompt"
        )
        raise ConfigError(message)


COMMANDS = {
    "status": Command(
        about="model, session, what was used and what it cost, budgets",
        run="commands.session:status",
    ),
    "cost": Command(
        about="tokens and money: of this session by job and model, of the notebook, of today",
        run="commands.session:cost",
    ),
    "panel": Command(
        usage="[memory, skills, context or session]",
        about="all of this at the side of the page",
        run="panels.command:panel",
        words=("memory", "skills", "context", "session"),
    ),
    "last": Command(about="the last turn once more", run="commands.session:last"),
    "new": Command(
        about="end this session; the next turn starts another", run="commands.session:new"
    ),
    "resume": Command(
        usage="[ID or TITLE]",
        about="go on with an earlier session",
        run="commands.session:resume",
        names="sessions",
    ),
    "sessions": Command(
        usage="[delete ID… or --older-than 90d [--yes]]",
        about="recent sessions, what they used and cost; or forget some for good",
        run="commands.forgetting:sessions",
        words=("delete",),
        names="sessions",
        before=("delete",),
    ),
    "search": Command(
        usage="QUERY", about="find what was said in any session", run="commands.session:search"
    ),
    "history": Command(
        usage="[ID or TITLE]",
        about="what was said in a session",
        run="commands.session:history",
        names="sessions",
    ),
    "export": Command(
        usage="[markdown, notebook or jsonl] [ID or TITLE]",
        about="write a session into a file, without secrets",
        run="commands.session:export_",
        words=("markdown", "notebook", "jsonl"),
        names="sessions",
        before=("markdown", "notebook", "jsonl"),
    ),
    "memory": Command(
        usage="[show, add, edit, remove, undo, pending, approve or reject]",
        about="what Hermes keeps in mind about you",
        run="commands.knowledge:memory",
        words=("show", "add", "edit", "remove", "undo", "pending", "approve", "reject"),
    ),
    "skills": Command(
        usage="[list, show, enable, disable, delete, undo, trust, pending, approve or reject] "
        "[NAME]",
        about="procedures it follows, yours and its own",
        run="commands.knowledge:skills",
        words=(
            *("list", "show", "enable", "disable", "delete", "undo", "trust"),
            *("pending", "approve", "reject"),
        ),
        names="skills",
        before=("show", "enable", "disable", "delete", "undo", "trust"),
    ),
    "trust": Command(
        usage="[NAME, conversation or --forget PATH]",
        about="files that were not loaded as they stand, text from outside",
        run="commands.knowledge:trust",
    ),
    "context": Command(
        usage="[LAYER]",
        about="what fills the window, part by part",
        run="commands.window:context",
        names="layers",
    ),
    "compress": Command(
        usage="[FOCUS or --undo]",
        about="make the conversation shorter",
        run="commands.window:compress",
        words=("--undo",),
    ),
    "reload": Command(about="build the system prompt anew", run="commands.window:reload"),
    "model": Command(
        usage="[NAME]",
        about="show or choose the model; `embedded` is the built-in one",
        run="commands.model:model",
        names="models",
    ),
    "models": Command(
        usage="[accept, or forget [ADDRESS]]",
        about="the models at hand: window, price; whether a server found here may be used",
        run="commands.model:models",
        words=("accept", "forget"),
    ),
    "key": Command(
        usage="[openai, openrouter or VARIABLE]",
        about="ask for a provider's key by a prompt that shows nothing, keep it, and try it",
        run="commands.key:key",
        words=("openai", "openrouter"),
    ),
    "tools": Command(
        usage="[NAMES or all]",
        about="show the tools, or switch to some of them",
        run="commands.session:tools",
        words=("all",),
        names="tools",
    ),
    "approve": Command(
        usage="[ask, edits, all or never]",
        about="what runs without a question",
        run="commands.session:approve",
        words=("ask", "edits", "all", "never"),
    ),
    "fix": Command(
        usage="[WISH]",
        about="mend the cell that failed last and run it again",
        run="commands.repair:fix",
    ),
    "explain": Command(
        usage="[WISH]",
        about="explain the last error, or else the last cell",
        run="commands.repair:explain",
    ),
    "undo": Command(
        usage="[TURN] [--force]",
        about="take back what a turn changed",
        run="commands.undo:undo_command",
        words=("--force",),
    ),
    "diff": Command(
        usage="[TURN]",
        about="what a turn changed, in cells and files",
        run="commands.undo:diff_command",
    ),
    "map": Command(
        usage="[--executor NAME] [--parallel N] [--into NAME] [--retry] [--model NAME] "
        '[--max-cost USD] [--max-tokens N] "PROMPT" FILES…',
        about="one prompt over many files or notebooks, a table of answers; the same line goes on",
        run="commands.fanout:map_",
        words=(
            *("--executor", "--parallel", "--into", "--retry", "--model"),
            *("--max-cost", "--max-tokens"),
        ),
        names="models",
        before=("--model",),
    ),
    "jobs": Command(
        usage="[stop [ID]]",
        about="child agents and maps that run now, and an end to them",
        run="commands.fanout:jobs",
        words=("stop",),
        names="jobs",
        before=("stop",),
    ),
    "cassette": Command(
        usage="[status, record, replay, auto, off, prune or accept]",
        about="record what the model says, and replay it without one",
        run="commands.cassette:cassette",
        words=("status", "record", "replay", "auto", "off", "prune", "accept"),
    ),
    "config": Command(
        usage="[KEY [VALUE or default]]",
        about="every setting, its value and where it comes from; or set one for this kernel",
        run="commands.settings:config",
        names="settings",
    ),
    "doctor": Command(
        usage="[--offline]",
        about="check model and key (asking for nothing but a list), home, front end and sandbox",
        run="commands.checks:doctor",
        words=("--offline",),
    ),
    "help": Command(
        usage="[COMMAND]",
        about="this list, or one command of it",
        run="reference:help_",
        names="commands",
    ),
}
