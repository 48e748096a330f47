"""The `%hermes` commands: which there are, how one is found and run, what the TAB key offers.

Those of Hermes are in `commands.toml`; other packages bring theirs under the entry point group
`hermes_nb.commands`. Completion, help and the reference are made of this, and nothing of what a
command needs is imported before it runs.

Completion is a matcher of IPython's completer, which terminals and kernels share. It looks at the
line alone: commands and options come from tables, names from an agent that is in use already. It
imports nothing heavy, opens nothing, sends nothing, and a name that cannot be had is not offered.
"""

from __future__ import annotations

import argparse
import asyncio
import glob
import inspect
import pkgutil
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.plugins import plugins
from hermes_nb.core.text import one_line
from hermes_nb.notebook.shell import Foreign, ours

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hermes_nb.notebook.kernel_agent import KernelAgent

GROUP = "hermes_nb.commands"
CLOSE_ENOUGH = 0.7
"""How alike (0 to 1) a word must be to a known one to count as a slip of the pen."""
LONG, LONG_SLIP = 6, 2
"""In words of so many letters, so many may be wrong."""
LINE = re.compile(r"^\s*(?:[\w.,\[\]'\" ]+=\s*)?%hermes[ \t]+(.*)$", re.DOTALL)
CELL = re.compile(r"^%%hermes[ \t]+(.*)$", re.DOTALL)
CELL_HEAD = re.compile(r"%%hermes\b")
OFFERED = {"--model": "models", "--session": "sessions", "--tools": "tools"}
"""Options whose value is one of the agent's names."""
VARIABLE = ("--image", "--into")
"""Options whose value is, or begins with, one of the user's variables."""
ASKED = "comm_info_request"
"""The control messages by which a page asks; labextension/static/prompts.js sends them."""
IN_CELLS = (
    "`%%hermes` sends the cell as a prompt, `%hermes PROMPT` a line.",
    "`%%hermes?` shows the options of a turn.",
)
IN_CHAT = (
    "What you type is a prompt; behind a `/` it is a command, or options and a prompt.",
    "`/--` and TAB show the options of a turn, `/exit` leaves.",
)
"""What stands above and below the list of commands."""
MOST_FILES, MOST_SESSIONS = 200, 50
"""Files and sessions that are offered."""

Names = Literal[
    "sessions", "skills", "models", "tools", "layers", "settings", "commands", "jobs", "servers"
]
Run = Callable[[Foreign, str], str | Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: what it takes, what it is for, and what it does.

    `run` is a function, or `module:function`, of the kernel's agent and the words behind the
    command; it may be async, and returns Markdown to show. What is wrong with the words it raises
    as `ConfigError`. `words` are what the first word may be, and `names` the kind of names that the
    command takes: behind a word in `before`, or as its first one.
    """

    usage: str = ""
    about: str
    run: str | Run
    words: tuple[str, ...] = ()
    names: Names | None = None
    before: tuple[str, ...] = ()


def _own() -> dict[str, Command]:
    table = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
    return {
        name: Command(**{**facts, **{k: tuple(facts.get(k, ())) for k in ("words", "before")}})
        for name, facts in table.items()
    }


COMMANDS = _own()
"""Hermes' own."""


def commands() -> dict[str, Command]:
    """Return Hermes' own commands, with those of its extras, whose modules import little."""
    extras = {name: point for name, point in installed().items() if _is_ours(point)}
    return COMMANDS | {name: cast("Command", point.load()) for name, point in extras.items()}


def installed() -> Mapping[str, EntryPoint]:
    """Return where commands of packages are; a name of the core's cannot be taken over."""
    return {point.name: point for point in plugins(GROUP) if point.name not in COMMANDS}


def _is_ours(point: EntryPoint) -> bool:
    return point.module.startswith("hermes_nb.")


def command_named(name: str) -> Command | None:
    """Return a command, None where there is none.

    Raises `ConfigError` for one of another package that cannot be loaded.
    """
    if name in COMMANDS or name not in installed():
        return COMMANDS.get(name)
    try:
        found = installed()[name].load()
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(f"`%hermes {name}` of another package cannot be loaded: {why}") from error
    if not isinstance(found, Command):
        raise ConfigError(f"`%hermes {name}` of another package is no Command")
    return found


def every_command() -> dict[str, Command]:
    """Return all commands by name; what is wrong with one stands in the place of what it does."""
    found = dict(COMMANDS)
    for name in installed():
        try:
            found[name] = command_named(name) or COMMANDS["help"]
        except ConfigError as error:
            found[name] = Command(about=str(error), run="")
    return found


def find(line: str) -> tuple[Command, str] | None:
    """Return the command that a magic line names and its words, or None for a prompt.

    Raises `ConfigError` for what looks like a slip of the pen: a lone word, or a word and one that
    a command takes, that is nearly the command; or a command's first word that is nearly one.
    """
    word, *more = line.split(None, 1) or [""]
    rest = more[0].strip() if more else ""
    if (command := command_named(word)) is not None:
        _check_first(word, command, rest)
        return command, rest
    if near := _meant(word, rest):
        raise ConfigError(
            f"there is no command {word!r}; did you mean `%hermes {f'{near} {rest}'.strip()}`? "
            f"Nothing was sent; `%hermes -- {line.strip()}` sends it as a prompt"
        )
    return None


async def perform(command: Command, agent: KernelAgent, words: str) -> str:
    """Run a command and return what to show."""
    run: str | Run = command.run
    if isinstance(run, str):
        run = cast("Run", await asyncio.to_thread(pkgutil.resolve_name, run))
    shown = run(agent, words)
    return str(await shown if inspect.isawaitable(shown) else shown)


def _check_first(name: str, command: Command, words: str) -> None:
    """Raise `ConfigError` for a first word that is nearly one of the command's."""
    first = next(iter(words.split(None, 1)), "")
    if not first or first in command.words or not command.words:
        return
    near = _nearest(first, command.words, CLOSE_ENOUGH)
    if near and (command.names in (None, "skills") or first.startswith("-")):
        raise ConfigError(
            f"there is no `%hermes {name} {first}`; did you mean `%hermes {name} {near}`? "
            f"`%hermes -- {name} {words}` sends it as a prompt"
        )


def _meant(word: str, rest: str) -> str:
    """Return the command that `word` is nearly, of those that take `rest`; "" if there is none."""
    if rest and not word.isalpha():  # `memory, edit` is a part of a sentence
        return ""
    takes = [name for name, command in commands().items() if not rest or rest in command.words]
    takes += [] if rest else installed()
    near = [name for name in takes if _is_slip(word.lower(), name)]
    return _nearest(word.lower(), near, 0)


def _is_slip(typed: str, name: str) -> bool:
    """Say whether a word is a name with letters swapped, or one other (two in a longer word).

    The first letter stays, people get that right, unless it is swapped: `next` is not `context`.
    """
    missing, extra = Counter(name) - Counter(typed), Counter(typed) - Counter(name)
    others = missing.total(), extra.total()
    few = max(others) <= 1 or (sum(others) == LONG_SLIP and len(typed) >= LONG)
    near = few and typed[:1] == name[:1] and _nearest(name, [typed], CLOSE_ENOUGH)
    return not any(others) or bool(near)


def _nearest(word: str, known: Iterable[str], least: float) -> str:
    """Return the word that is most like it, "" where none is alike by `least` (0 to 1)."""
    from difflib import get_close_matches  # only for slips of the pen

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=least)), "")


def help_(agent: KernelAgent, words: str) -> str:
    """List the commands, or say what one of them takes."""
    name = words.strip().removeprefix("%hermes").strip()
    if not name:
        magics = ours(agent.shell)
        head, foot = IN_CHAT if magics and magics.spelled == "/" else IN_CELLS
        return f"{head}\n\n{commands_table(every_command())}\n\n{foot}"
    command = command_named(name)
    if command is None:
        raise ConfigError(f"there is no command {name!r}; `%hermes help` lists them")
    from hermes_nb.safety.markup import code_span

    return f"{code_span(f'%hermes {name} {command.usage}'.strip())}: {command.about}."


def commands_table(shown: Mapping[str, Command] | None = None) -> str:
    """Return commands as a Markdown table, Hermes' own where none are given."""
    from hermes_nb.notebook.display.tables import grid
    from hermes_nb.safety.markup import code_span

    rows = (
        (code_span(f"%hermes {name} {each.usage}".strip()), each.about)
        for name, each in (shown or commands()).items()
    )
    return grid(("command", "what it does"), rows)


class Completions:
    """Completes the magics of one shell."""

    def __init__(self, magics: Foreign) -> None:
        self._magics = magics
        self.matcher = self._make_matcher()

    def _make_matcher(self) -> Foreign:
        @context_matcher(identifier="hermes")
        def match(context: CompletionContext) -> Mapping[str, object]:
            lines = context.full_text.split("\n")[: context.cursor_line + 1]
            lines[-1] = lines[-1][: context.cursor_position]
            found = self.found("\n".join(lines))
            if found is None:
                return {"completions": [], "suppress": False}
            fragment, words = found
            return {
                "completions": [SimpleCompletion(text=word, type="hermes") for word in words],
                "matched_fragment": fragment,
                "suppress": True,
                "ordered": True,
            }

        match.hermes = True  # how it is found again by `unload`
        return match

    def found(self, typed: str) -> tuple[str, list[str]] | None:
        """Return what the end of a cell's text may become, None for what is not ours."""
        above, newline, line = typed.rpartition("\n")
        inside = bool(newline) and CELL_HEAD.match(above) is not None
        if not inside and not LINE.match(line):
            return self.offered(line, first=not newline)
        from hermes_nb.notebook.completion import completed, in_words

        shell = self._magics.shell
        found = completed(typed if inside else line, shell, Path(), self.servers)
        return found or (in_words(typed, shell) if inside else self.offered(line))

    @property
    def servers(self) -> Mapping[str, Sequence[str]]:
        """MCP servers and what of them can be named, as far as an agent in use has heard."""
        agent = self._magics.awake
        return agent.mcp.references if agent is not None else {}

    def answer_while_busy(self, kernel: Foreign) -> None:
        """Let a page ask this while a cell runs.

        It asks on the control channel, which is read at all times. The messages are those that ask
        for a target's comms, with a question of ours in them: JupyterLab from 4.5 on does not take
        them for a sign that the kernel became busy or idle, and a kernel without us answers too.
        """
        if not hasattr(kernel, "control_handlers"):
            return
        ordinary = kernel.comm_info_request

        def answer(stream: Foreign, ident: Foreign, parent: Foreign) -> Foreign:
            question = parent["content"].get("complete")
            if not isinstance(question, str):
                return ordinary(stream, ident, parent)
            fragment, words = self.found(question) or ("", [])
            told = {"status": "ok", "comms": {}, "fragment": fragment, "matches": words}
            kernel.session.send(stream, "comm_info_reply", told, parent, ident)
            return None

        kernel.control_handlers[ASKED] = answer

    def offered(self, line: str, *, first: bool = True) -> tuple[str, list[str]] | None:
        """Return what the last word begins with and may become; None for a line not ours.

        `line` ends where the cursor stands; `first` says whether it is the cell's first one.
        """
        cell = CELL.match(line) if first else None
        found = cell or LINE.match(line)
        if found is None:
            return None
        typed = found[1]
        words, fragment = _last_word(typed)
        options = self._options()
        if (option := _open_option(words, options)) is not None:
            return self._value(option, fragment)
        name, _, value = fragment.partition("=")
        if "=" in fragment:
            return self._value(options.get(name), value)
        if fragment.startswith("-") and (not words or words[0] not in commands()):
            return fragment, _beginning(options, fragment)
        if cell is not None:
            return None
        if not words:
            return fragment, _beginning([*COMMANDS, *installed()], fragment)
        return self._argument(words[0], typed.lstrip()[len(words[0]) :].lstrip())

    def _options(self) -> dict[str, argparse.Action]:
        parser = self._magics.hermes.parser
        return {
            name: action
            for action in parser._actions  # noqa: SLF001 - argparse has no public listing
            for name in action.option_strings
            if name.startswith("--")
        }

    def _value(self, option: argparse.Action | None, fragment: str) -> tuple[str, list[str]] | None:
        """Return the values of an option that begin like that."""
        if option is None:
            return None
        name = option.option_strings[-1]
        if name in VARIABLE:
            shell = self._magics.shell
            names = [each for each in list(shell.user_ns) if each not in shell.user_ns_hidden]
            return fragment, _beginning((n for n in names if not n.startswith("_")), fragment)
        if option.choices is not None:
            return fragment, _beginning(map(str, option.choices), fragment)
        kind = OFFERED.get(name, "")
        if kind == "tools":  # several, by commas
            last = fragment.rpartition(",")[2]
            return last, _beginning(self._names(kind), last)
        return fragment, _beginning(map(_quoted, self._names(kind)), fragment)

    def _argument(self, name: str, typed: str) -> tuple[str, list[str]] | None:
        if name == "map":
            return self._of_a_map(typed)
        point = installed().get(name)  # which is not imported for that
        light = point is None or _is_ours(point) or point.module in sys.modules
        command = command_named(name) if light else None
        if command is None or not (command.words or command.names):
            return None
        first, blank, rest = typed.partition(" ")
        if blank and first in command.before:
            rest = rest.lstrip()
            return rest, _beginning(self._names(command.names or ""), rest)
        named = [] if name in ("skills", "mcp") else self._names(command.names or "")
        return typed, _beginning([*command.words, *named], typed)

    def _of_a_map(self, typed: str) -> tuple[str, list[str]] | None:
        """Return what the last word of a map may become: an option, a model's name, a file."""
        words, fragment = _last_word(typed)
        if fragment.startswith("-"):
            return fragment, _beginning(COMMANDS["map"].words, fragment)
        if words and words[-1] == "--model":
            return fragment, _beginning(self._names("models"), fragment)
        if words and words[-1] == "--executor":
            from hermes_nb.agent.fanout.executors import executor_names

            return fragment, _beginning(executor_names(), fragment)
        # Before the prompt is closed, words are the prompt's; behind it, they are files.
        if typed.count('"') % 2 or not re.search(r"""['"].*['"]""", typed):
            return None
        found = sorted(glob.glob(f"{glob.escape(fragment)}*"))[:MOST_FILES]  # noqa: PTH207 - as typed
        return fragment, [_quoted(f"{each}/" if Path(each).is_dir() else each) for each in found]

    def _names(self, kind: str) -> Iterable[str]:
        """Return names of a kind; without an agent there are only those that are always there."""
        if kind == "commands":
            return [*COMMANDS, *installed()]
        agent = self._magics.awake
        if agent is None:
            return _built_in() if kind == "models" else ()
        try:
            return _known(agent, kind)
        except (HermesError, OSError):
            return ()


def _built_in() -> tuple[str, ...]:
    from hermes_nb.models.installed import EMBEDDED, is_installed

    return (EMBEDDED,) if is_installed(EMBEDDED) else ()


def _known(agent: KernelAgent, kind: str) -> list[str]:
    """Return names that an agent in use knows: quick, from what is open already."""
    from hermes_nb.agent.session.context_usage import shares
    from hermes_nb.core.escapes import visible
    from hermes_nb.models.installed import model_names
    from hermes_nb.tools.choice import DEFAULT
    from hermes_nb.tools.installed import named_toolsets

    match kind:
        case "sessions":
            found = agent.store.sessions(limit=MOST_SESSIONS)
            titles = [visible(each.title).replace("\n", " ").strip() for each in found]
            return [*dict.fromkeys(filter(None, titles)), *(each.id for each in found)]
        case "models":
            settings = agent.settings()
            ends = [settings.endpoint, *(end for _, end in settings.beside)]
            used = [each.model for each in agent.store.sessions(limit=MOST_SESSIONS)]
            return list(
                dict.fromkeys(filter(None, [*(e.model for e in ends), *model_names(), *used]))
            )
        case "skills" if agent.equipped:
            return [skill.name for skill in agent.knowledge.library.list(all_of_them=True)]
        case "tools" if agent.equipped:
            known = agent.tools()
            own = [*agent.settings().toolsets, DEFAULT]
            sets = [*own, *(tool.toolset for tool in known), *named_toolsets()]
            return [*dict.fromkeys(sets), *(tool.name for tool in known)]
        case "layers" if agent.session is not None:
            return [part.name for part in shares(agent.session) if part.text]
        case "settings":
            return sorted(agent.settings().values)
        case "jobs" | "servers":
            servers = list(agent.mcp.connections)
            return [job.id for job in agent.jobs] if kind == "jobs" else servers
        case _:
            return []


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def _last_word(typed: str) -> tuple[list[str], str]:
    words = typed.split()
    return words, words.pop() if words and not typed[-1:].isspace() else ""


def _open_option(
    words: list[str], options: Mapping[str, argparse.Action]
) -> argparse.Action | None:
    """Return the option whose value comes next, None if none is waiting for one.

    All words have to be options and their values: else the prompt has begun.
    """
    waiting: argparse.Action | None = None
    for word in words:
        if waiting is not None:
            waiting = None
            continue
        name, has_value, _ = word.partition("=")
        if name not in options:
            return None
        waiting = None if has_value or options[name].nargs == 0 else options[name]
    return waiting


def _beginning(words: Iterable[str], fragment: str) -> list[str]:
    """Return the words that begin like the fragment, each once, those in its case first."""
    lower = fragment.lower()
    found = dict.fromkeys(word for word in words if word.lower().startswith(lower))
    return sorted(found, key=lambda word: not word.startswith(fragment))
