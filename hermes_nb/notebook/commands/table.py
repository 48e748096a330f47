"""The `%hermes` commands: their table, lookup, execution and TAB completion.

Hermes' own commands are in `commands.toml`. Other packages add theirs under the entry point group
`hermes_nb.commands`. Completion, help and the reference are generated from this table. A command's
modules are imported when it runs.

Completion is a matcher for IPython's completer, which terminals and kernels share. It only uses the
line: commands and options come from tables, other names from the agent if it is already running. It
imports nothing slow, opens no files or connections, and omits names that would need any of this.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.plugins import plugins
from hermes_nb.core.text import one_line
from hermes_nb.notebook.commands.arguments import kinds, parsed
from hermes_nb.notebook.execute.network import by_hermes
from hermes_nb.notebook.shell import Foreign, hermes_magics

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hermes_nb.notebook.kernel_agent import KernelAgent

GROUP = "hermes_nb.commands"
"""Entry point group for commands."""
CLOSE_ENOUGH = 0.7
"""Minimum similarity (0 to 1) to a known word for a word to count as a typo."""
LONG, LONG_SLIP = 6, 2
"""Words of `LONG` letters or more may have `LONG_SLIP` wrong letters."""
LINE = re.compile(r"^\s*(?:[\w.,\[\]'\" ]+=\s*)?%hermes[ \t]+(.*)$", re.DOTALL)
CELL = re.compile(r"^%%hermes[ \t]+(.*)$", re.DOTALL)
CELL_HEAD = re.compile(r"%%hermes\b")
OFFERED = {"--model": "models", "--session": "sessions", "--tools": "tools"}
"""Options whose values are names from the agent, by kind of name."""
VARIABLE = ("--image", "--into")
"""Options whose values start with a variable name."""
ASKED = "comm_info_request"
"""Type of the control messages that request completions; see labextension/static/prompts.js."""
IN_CELLS = (
    "`%%hermes` sends the rest of its cell as a prompt; `%hermes PROMPT` sends a line.",
    "`%hermes help COMMAND` explains a command; `%%hermes?` shows the options of a prompt.",
)
"""Text above and below the command list in a notebook."""
IN_CHAT = (
    "Type a prompt and press Enter. Start with `/` for a command, or for options and a prompt.",
    "`/help COMMAND` explains a command; `/--` and TAB show the options; `/exit` quits.",
)
"""The same for the terminal chat."""
MOST_FILES, MOST_SESSIONS = 200, 50
"""Maximum files and sessions to offer."""

Names = Literal[
    "sessions", "skills", "models", "tools", "layers", "settings", "commands", "jobs", "servers"
]
"""Kinds of names that completion offers."""
PLACEHOLDERS: Mapping[str, Names] = {
    "SESSION": "sessions",
    "SKILL": "skills",
    "MODEL": "models",
    "TOOLS": "tools",
    "LAYER": "layers",
    "SETTING": "settings",
    "COMMAND": "commands",
    "JOB": "jobs",
    "SERVER": "servers",
}
"""The kind of name for each placeholder in a command's `values`."""
Run = Callable[[Foreign, Foreign], str | Awaitable[str]]
"""Runs a command with the kernel's agent and its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command."""

    usage: str = ""
    """Its arguments, as shown in help."""
    about: str
    """What it does, in at most 60 characters, without a full stop."""
    group: str = "Other packages"
    """Its group in `%hermes help`."""
    page: str = ""
    """Its documentation page, under `docs/`."""
    examples: Sequence[str] = ()
    """Example lines, without `%hermes`."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Its possible arguments and their meanings; commands.toml explains the format."""
    run: str | Run
    """A function that takes the kernel's agent and the arguments, or its name as `module:function`.

    It may be async, returns Markdown to show, and raises `ConfigError` for invalid arguments.
    """
    words: tuple[str, ...] = ()
    """Accepted first words, for completion and typos; () for any."""
    names: Names | None = None
    """Kind of name that it accepts, for completion; None if it accepts none."""
    before: tuple[str, ...] = ()
    """Words after which a name follows."""
    leading: bool = True
    """Whether a name can be the first argument."""
    shows: bool = False
    """Whether it only displays something, so that the agent's code may use it."""
    name: str = ""
    """Its name, for messages about its arguments."""
    parse: bool = False
    """Whether `run` gets the parsed `values` as a Namespace, not the words."""

    def arguments(self, words: str) -> Foreign:
        """Return the arguments of `run` for these words."""
        return parsed(self.name, self.values, words) if self.parse else words


def declared(command: Command) -> Command:
    """Return a command with the usage and completion derived from its `values`."""
    actions, options, others = kinds(command.values)
    usage = " ".join(command.values)
    if actions:
        verbs = actions.values() if len(actions) == 1 else actions
        choices = [*(key.strip("[]") for key in others), *verbs]
        usage = " ".join([f"[{', '.join(choices)}]", *options.values()])
    named = {
        key: kind for key in command.values for word, kind in PLACEHOLDERS.items() if word in key
    }
    first = {**actions, **options}
    return replace(
        command,
        usage=usage,
        words=tuple(first),
        names=next(iter(named.values()), None),
        before=tuple(word for word, key in first.items() if key in named),
        leading=any(key in named for key in others),
    )


def _builtin_commands() -> dict[str, Command]:
    table = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
    made = (Command(name=name, **{"parse": True, **facts}) for name, facts in table.items())
    return {command.name: declared(command) for command in made}


COMMANDS = _builtin_commands()
"""Hermes' own commands by name."""


def commands() -> dict[str, Command]:
    """Return Hermes' own commands, including its extras; importing these is fast."""
    extras = {name: point for name, point in installed().items() if _is_ours(point)}
    return COMMANDS | {name: cast("Command", point.load()) for name, point in extras.items()}


def installed() -> Mapping[str, EntryPoint]:
    """Return the commands' entry points, except those named like Hermes' own commands."""
    return {point.name: point for point in plugins(GROUP) if point.name not in COMMANDS}


def _is_ours(point: EntryPoint) -> bool:
    return point.module.startswith("hermes_nb.")


def command_named(name: str) -> Command | None:
    """Return a command, or None if unknown.

    Raises `ConfigError` if another package's command cannot be loaded.
    """
    if name in COMMANDS or name not in installed():
        return COMMANDS.get(name)
    try:
        found = installed()[name].load()
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(f"`%hermes {name}` of another package cannot be loaded: {why}") from error
    if not isinstance(found, Command):
        raise ConfigError(f"`%hermes {name}` of another package is not a Command")
    return found


def every_command() -> dict[str, Command]:
    """Return all commands by name; a broken one is described by its problem."""
    found = dict(COMMANDS)
    for name in installed():
        try:
            found[name] = command_named(name) or COMMANDS["help"]
        except ConfigError as error:
            found[name] = Command(about=str(error), run="")
    return found


def find(line: str) -> tuple[Command, str] | None:
    """Return a magic line's command and its arguments, or None for a prompt.

    Raises `ConfigError` for a likely typo: a single word similar to a command, alone or before an
    argument of that command, or an argument similar to one of the command's words.
    """
    word, *more = line.split(None, 1) or [""]
    rest = more[0].strip() if more else ""
    if word == "why" and len(rest.split()) != 1:  # a question, not the name of a variable
        return None
    if word in ("keep", "drop") and rest and not rest[0].isdigit():  # `drop the empty rows`
        return None
    if (command := command_named(word)) is not None:
        _check_first(word, command, rest)
        return command, rest
    if near := _similar_command(word, rest):
        raise ConfigError(
            f"there is no command {word!r}; did you mean `%hermes {f'{near} {rest}'.strip()}`? "
            f"Nothing was sent; `%hermes -- {line.strip()}` sends it as a prompt"
        )
    return None


async def perform(command: Command, agent: KernelAgent, words: str) -> str:
    """Run a command and return the text to display.

    Raises `ConfigError` if the agent's code calls it and the command could change something.
    """
    if not command.shows:
        agent.permission.check("use this command")
    return await _performed(command, agent, words)


@by_hermes
async def _performed(command: Command, agent: KernelAgent, words: str) -> str:
    run: str | Run = command.run
    if isinstance(run, str):
        run = cast("Run", await asyncio.to_thread(pkgutil.resolve_name, run))
    quoted = command.parse and next(iter(command.values), "").startswith('"')
    if command.values and ((quoted and not words) or words.strip() in ("-h", "--help")):
        return _page(command.name, command)
    shown = run(agent, command.arguments(words))
    return str(await shown if inspect.isawaitable(shown) else shown)


def _check_first(name: str, command: Command, words: str) -> None:
    """Raise `ConfigError` for a first argument that is almost one of the command's words."""
    first = next(iter(words.split(None, 1)), "")
    if not first or first in command.words or not command.words:
        return
    near = _nearest(first, command.words, CLOSE_ENOUGH)
    if near and (not command.names or not command.leading or first.startswith("-")):
        raise ConfigError(
            f"there is no `%hermes {name} {first}`; did you mean `%hermes {name} {near}`? "
            f"`%hermes -- {name} {words}` sends it as a prompt"
        )


def _similar_command(word: str, rest: str) -> str:
    """Of the commands that accept `rest`, return the most similar to `word`, or ""."""
    if rest and not word.isalpha():  # `memory, edit` is part of a sentence
        return ""
    takes = [name for name, command in commands().items() if not rest or rest in command.words]
    takes += [] if rest else installed()
    near = [name for name in takes if _is_slip(word.lower(), name)]
    return _nearest(word.lower(), near, 0)


def _is_slip(typed: str, name: str) -> bool:
    """Return whether a word is a misspelt name: letters swapped, or one wrong (two if long).

    The first letter must match unless it was swapped, because people rarely mistype it: `next` is
    not a typo of `context`. A wrong letter stands where the right one belongs: `read` is not a typo
    of `redo`.
    """
    missing, extra = Counter(name) - Counter(typed), Counter(typed) - Counter(name)
    others = missing.total(), extra.total()
    if others == (1, 1) and sum(map(str.__ne__, name, typed)) > 1:
        return False
    few = max(others) <= 1 or (sum(others) == LONG_SLIP and len(typed) >= LONG)
    near = few and typed[:1] == name[:1] and _nearest(name, [typed], CLOSE_ENOUGH)
    return not any(others) or bool(near)


def _nearest(word: str, known: Iterable[str], least: float) -> str:
    """Return the known word most similar to `word`, or "" if all are below `least` (0 to 1)."""
    from difflib import get_close_matches  # imported lazily: only typos need it

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=least)), "")


def help_(agent: KernelAgent, given: argparse.Namespace) -> str:
    """List the commands, or explain one of them."""
    name = given.command.removeprefix("%hermes").strip()
    if not name:
        magics = hermes_magics(agent.shell)
        head, foot = IN_CHAT if magics and magics.spelled == "/" else IN_CELLS
        return f"{head}\n\n{commands_table(every_command(), usage=False)}\n\n{foot}"
    command = command_named(name)
    if command is None:
        raise ConfigError(f"there is no command {name!r}; `%hermes help` lists them")
    return _page(name, command)


def _page(name: str, command: Command) -> str:
    from hermes_nb.core.text import capitalised
    from hermes_nb.notebook.display.tables import grid
    from hermes_nb.safety.markup import code_span

    parts = [code_span(_usage(name, command)), f"{capitalised(command.about)}."]
    if command.values:
        rows = [(code_span(key), meaning) for key, meaning in command.values.items()]
        parts.append(grid(("value", "meaning"), rows))
    if command.examples:
        lines = [f"- {code_span(f'%hermes {line}')}" for line in command.examples]
        parts.append("\n".join(["Examples:", "", *lines]))
    if command.page:
        parts.append(f"Documentation: docs/{command.page}")
    return "\n\n".join(parts)


def _usage(name: str, command: Command) -> str:
    return f"%hermes {name} {command.usage}".strip()


def commands_table(shown: Mapping[str, Command] | None = None, *, usage: bool = True) -> str:
    """Return commands in groups as a Markdown table, Hermes' own by default."""
    from hermes_nb.notebook.display.tables import grid
    from hermes_nb.safety.markup import code_span

    shown = shown or commands()
    rows: list[tuple[str, str]] = []
    for group in dict.fromkeys(command.group for command in shown.values()):
        rows.append((f"**{group}**", ""))
        rows += [
            (code_span(_usage(name, each) if usage else f"%hermes {name}"), each.about)
            for name, each in shown.items()
            if each.group == group
        ]
    return grid(("command", "what it does"), rows)


class Completions:
    """Completes one shell's magics."""

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

        match.hermes = True  # `unload` finds it by this attribute
        return match

    def found(self, typed: str) -> tuple[str, list[str]] | None:
        """Return completions at the end of a cell's text, or None if it is not a Hermes magic."""
        above, newline, line = typed.rpartition("\n")
        inside = bool(newline) and CELL_HEAD.match(above) is not None
        if not inside and not LINE.match(line):
            return self.offered(line, first=not newline)
        from hermes_nb.notebook.completion import completed, in_words

        shell = self._magics.shell
        if inside and "\n" not in above and re.fullmatch(r"/[\w.-]*", line):
            return line, _beginning([f"/{name}" for name in self._names("skills")], line) or [line]
        found = completed(typed if inside else line, shell, Path(), self.servers)
        return found or (in_words(typed, shell) if inside else self.offered(line))

    @property
    def servers(self) -> Mapping[str, Sequence[str]]:
        """MCP servers with their resources and prompts, if the agent knows them."""
        agent = self._magics.awake
        return agent.mcp.references if agent is not None else {}

    def answer_while_busy(self, kernel: Foreign) -> None:
        """Let a page request completions, and stop or steer turns, while a cell runs.

        The page sends its request on the control channel, which the kernel always reads. The
        request is a `comm_info_request` with an additional field. JupyterLab 4.5 and later do not
        treat such a message as a change between busy and idle, and kernels without Hermes also
        answer it.
        """
        if not hasattr(kernel, "control_handlers"):
            return
        ordinary = kernel.comm_info_request

        def answer(stream: Foreign, ident: Foreign, parent: Foreign) -> Foreign:
            question = parent["content"].get("complete")
            if isinstance(asked := parent["content"].get("hermes"), dict):
                from hermes_nb.notebook.commands.turns import answer as about_turns

                told = {"status": "ok", "comms": {}, **about_turns(self._magics.awake, asked)}
                kernel.session.send(stream, "comm_info_reply", told, parent, ident)
                return None
            if not isinstance(question, str):
                return ordinary(stream, ident, parent)
            fragment, words = self.found(question) or ("", [])
            told = {"status": "ok", "comms": {}, "fragment": fragment, "matches": words}
            kernel.session.send(stream, "comm_info_reply", told, parent, ident)
            return None

        kernel.control_handlers[ASKED] = answer

    def offered(self, line: str, *, first: bool = True) -> tuple[str, list[str]] | None:
        """Return the start of the last word, and its completions; None if not a Hermes magic.

        `line` ends at the cursor; `first` is True for the cell's first line.
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
        """Return the start of the value being typed, and the option's values that match it."""
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
        if kind == "tools":  # comma-separated
            last = fragment.rpartition(",")[2]
            return last, _beginning(self._names(kind), last)
        return fragment, _beginning(map(_quoted, self._names(kind)), fragment)

    def _argument(self, name: str, typed: str) -> tuple[str, list[str]] | None:
        if name == "map":
            return self._of_a_map(typed)
        point = installed().get(name)  # not imported for completion
        light = point is None or _is_ours(point) or point.module in sys.modules
        command = command_named(name) if light else None
        if command is None or not (command.words or command.names):
            return None
        first, blank, rest = typed.partition(" ")
        if blank and first in command.before:
            rest = rest.lstrip()
            return rest, _beginning(self._names(command.names or ""), rest)
        if blank and command.names == "settings":
            rest = rest.lstrip()
            return rest, _beginning(self._names(f"settings {first}"), rest)
        named = self._names(command.names or "") if command.leading else []
        return typed, _beginning([*command.words, *named], typed)

    def _of_a_map(self, typed: str) -> tuple[str, list[str]] | None:
        """Return completions for `map`: options, names or files."""
        words, fragment = _last_word(typed)
        if fragment.startswith("-"):
            return fragment, _beginning(COMMANDS["map"].words, fragment)
        if words and words[-1] == "--model":
            return fragment, _beginning(self._names("models"), fragment)
        if words and words[-1] == "--executor":
            from hermes_nb.agent.fanout.executors import executor_names

            return fragment, _beginning(executor_names(), fragment)
        # Words inside the quotes belong to the prompt; words after it are files.
        if typed.count('"') % 2 or not re.search(r"""['"].*['"]""", typed):
            return None
        found = sorted(glob.glob(f"{glob.escape(fragment)}*"))[:MOST_FILES]  # noqa: PTH207 - as typed
        return fragment, [_quoted(f"{each}/" if Path(each).is_dir() else each) for each in found]

    def _names(self, kind: str) -> Iterable[str]:
        """Return names of a kind; without an agent, only built-in ones."""
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
    """Return the names of a kind that the agent knows, without slow operations."""
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
        case _ if kind.startswith("settings"):
            settings, key = agent.settings(), kind.partition(" ")[2]
            values = (*settings.declared[key].words, "default") if key in settings.declared else ()
            return list(values) if key else sorted(settings.values)
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
    """Return the option that still needs a value, or None if there is no such option.

    The prompt starts at the first word that is neither an option nor its value.
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
    """Return the distinct words that start with the fragment, exact-case matches first."""
    lower = fragment.lower()
    found = dict.fromkeys(word for word in words if word.lower().startswith(lower))
    return sorted(found, key=lambda word: not word.startswith(fragment))
