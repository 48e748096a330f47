"""Entry points `%hermes` and `%%hermes`: parse the line, get the kernel's agent, call it.

Both are async: an input transformer puts `await` before the call that IPython generates, so that a
turn runs on the kernel's event loop. Only then can the kernel deliver widget clicks and notice an
interrupt while the cell runs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import math
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from traitlets import Bool, Int, TraitError, Unicode, observe, validate

import hermes_nb
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.messages import Json
from hermes_nb.notebook.commands.table import ASKED, Completions
from hermes_nb.notebook.execute import code_lock
from hermes_nb.notebook.execute.cell_runs import note_cell
from hermes_nb.notebook.execute.network import by_hermes, watch_cells
from hermes_nb.notebook.input_transformers import CHECKPOINT, awaited, checkpointed, questions
from hermes_nb.notebook.interrupt import Stopped, stoppable, stopped_in_view
from hermes_nb.notebook.keys import refuse_key
from hermes_nb.notebook.options import split_options
from hermes_nb.notebook.shell import MAGIC, hermes_magics, is_message, other_provider

if TYPE_CHECKING:
    from hermes_nb.agent.session.turn import Turn
    from hermes_nb.core.events import TurnEnded
    from hermes_nb.core.protocols import ChatModel
    from hermes_nb.core.tools import Tool, ToolContext
    from hermes_nb.notebook.frontend import FrontEnd
    from hermes_nb.notebook.kernel_agent import KernelAgent
    from hermes_nb.notebook.shell import Foreign, Shell


EMPTY = "This cell has no prompt. Write one below `%%hermes`; `%hermes help` lists the commands."


@magics_class
class HermesMagics(Magics):
    """The agent's magics; `%config HermesMagics.model = "…"` and similar lines set defaults."""

    model = Unicode("", help="Model name; `embedded` is the built-in model.").tag(config=True)
    base_url = Unicode("", help="Address of an OpenAI-compatible server.").tag(config=True)
    approve = Unicode("", help="What may run without approval: ask, edits, all or never.").tag(
        config=True
    )
    background = Bool(
        default_value=False, help="Run turns in the background, as with `--background`."
    ).tag(config=True)
    checkpoint_cells = Bool(
        default_value=False, help="Save the variables before each cell, as with `%%checkpoint`."
    ).tag(config=True)
    max_requests = Int(0, help="Maximum model requests in a turn (default: 15).").tag(config=True)

    shell: Foreign
    spelled = "%hermes "
    """Command prefix in messages to the user."""

    def __init__(self, shell: Foreign) -> None:
        self._agent: KernelAgent | None = (
            None  # set before the traits: a configuration may set those in super().__init__
        )
        super().__init__(shell=shell, parent=shell)
        self._began = self.approve
        self._before: list[tuple[dict[str, object], str, object]] = []
        self._taken = False
        self._saved = ExitStack()
        self._unsent: list[str] = []
        self._frontend: FrontEnd | None = None
        self.failed: BaseException | None = None

    @validate("approve", "model", "base_url", "max_requests")
    def _another_value(self, proposal: Foreign) -> Foreign:
        """Raise an error if code that the agent runs uses `%config`."""
        if self.awake is not None:
            try:
                self.awake.permission.check("change a setting")
                if proposal["trait"].name == "approve":
                    self.awake.settings(approve=proposal["value"] or None).insist("approve")
            except ConfigError as error:
                raise TraitError(str(error)) from None  # traitlets rolls back only on this error
        return proposal["value"]

    @observe("model", "base_url")
    def _another_model(self, _change: object) -> None:
        """Apply a `%config` change to the running agent from its next turn on."""
        if self.awake is not None:
            self.awake.change_models()

    def take(self, shell: Shell) -> None:
        """Register these magics; notify the user if they replace another package's."""
        if package := other_provider(shell):
            text = f"`{package}` had defined `%%hermes`; it is now Hermes' own magic"
            self._show(f"{text}. `%unload_ext hermes_nb` restores the other one.")
        manager = shell.magics_manager
        tables = [(manager.magics[kind], MAGIC) for kind in ("line", "cell")]
        tables.append((manager.registry, type(self).__name__))
        self._before = [(table, name, table.get(name)) for table, name in tables]
        shell.register_magics(self)
        shell.events.register("pre_run_cell", self._save)
        shell.events.register("post_run_cell", self._after_cell)

    def _save(self, info: Foreign) -> None:
        """Save the variables that a cell can reach, if it begins with `%%checkpoint`."""
        source = str(info.raw_cell or "")
        wanted = self.checkpoint_cells or source.lstrip().startswith(CHECKPOINT)
        if wanted and not is_message(source):
            from hermes_nb.notebook.execute.variable_history import CELLS, history_of

            history, code = history_of(self.shell), self.shell.transform_cell(source)
            number = max(history.turns(CELLS), default=0) + 1
            self._saved.enter_context(history.recording(CELLS, number, code))

    def _after_cell(self, result: Foreign) -> None:
        """Store the last error not raised by Hermes; warn once if our magics were replaced.

        Also record the run, so that stale cells are known.
        """
        self._saved.close()
        note_cell(self.shell, result)
        error = getattr(sys, "last_value", None)
        self.failed = self.failed if isinstance(error, HermesError) else error
        package = other_provider(self.shell)
        if package and not self._taken:
            text = f"`%%hermes` is now the magic of `{package}`"
            self._show(f"{text}. `%reload_ext hermes_nb` restores Hermes' own.")
        self._taken = bool(package)

    def give_back(self, shell: Shell) -> None:
        """Undo `take`, unless another package has since registered its magics."""
        shell.events.unregister("pre_run_cell", self._save)
        shell.events.unregister("post_run_cell", self._after_cell)
        for table, name, before in [] if other_provider(shell) else self._before:
            if before is None:
                table.pop(name, None)
            else:
                table[name] = before

    def close(self) -> None:
        """Stop background work."""
        if self._agent is not None:
            self._agent.close()

    @property
    def awake(self) -> KernelAgent | None:
        """The kernel's agent, or None before first use."""
        return self._agent

    @property
    def agent(self) -> KernelAgent:
        """The kernel's agent, created on first use."""
        if self._agent is None:
            from hermes_nb.notebook import kernel_agent

            self._agent = kernel_agent.KernelAgent(
                self.shell,
                overrides=self._configured,
                began=self._began,
                say=self._show,
                unsent=self._unsent,
                frontend=self._frontend,
            )
        return self._agent

    @no_var_expand
    @magic_arguments()
    @argument("--model", default="", metavar="NAME", help="use this model from now on")
    @argument("--tools", default="", metavar="NAMES", help="use only these tools or toolsets (a,b)")
    @argument("--session", default="", metavar="NAME", help="continue or start this session")
    @argument("--new", action="store_true", help="start a new session")
    @argument("--no-context", action="store_true", help="leave out the notebook's changes")
    @argument("--effort", choices=("low", "medium", "high"), default="", help="reasoning effort")
    @argument("--max-requests", type=int, metavar="N", help="maximum model requests (default: 15)")
    @argument("--max-cost", type=float, metavar="USD", help="maximum cost of this turn")
    @argument("--max-tokens", type=int, metavar="N", help="maximum tokens of this turn")
    @argument(
        "--approve",
        choices=("ask", "edits", "all", "never"),
        help="what may run without approval in this turn",
    )
    @argument(
        "--image",
        action="append",
        default=[],
        metavar="EXPR",
        help="send this figure, image, array or file; can be repeated",
    )
    @argument("--system", default="", metavar="TEXT", help="add to the system prompt in this turn")
    @argument(
        "--prefill", default="", metavar="FILE", help="messages to put before the conversation"
    )
    @argument("--into", default="", metavar="NAME", help="save the answer in this variable")
    @argument("--background", action="store_true", help="run it while you run other cells")
    @argument("--quiet", action="store_true", help="show only a status line at the end")
    @argument("--dry-run", action="store_true", help="show the request and send nothing")
    @argument("--what-if", action="store_true", help="run code on a copy, then keep or drop it")
    @argument("prompt", nargs=argparse.REMAINDER, help="the prompt, or a command (%%hermes help)")
    @line_cell_magic
    async def hermes(self, line: str, cell: str | None = None) -> None:
        """Ask Hermes: `%%hermes` sends the cell as a prompt, `%hermes PROMPT` sends a line.

        `%hermes help` lists the commands (status, model, tools, resume, …). Put options before
        the prompt; `--` ends them. `--into NAME --quiet` shows only a status line; `--dry-run
        --into NAME` saves the request as a dict.
        """
        refuse_key(self.shell, line)
        if cell is not None and not cell.strip():
            cell = None  # in this case there is only the line
            if not line.strip():
                self._show(EMPTY)
                return
        before = self._agent.turn if self._agent is not None else None
        try:
            with stoppable() as stop:
                await stop.catch_up()
                if cell is not None or not await self._command(line):
                    await self._ask(line, cell)
        except KeyboardInterrupt:  # raised while `input()` waited for an answer
            stop.stopped = True
        except ImportError as error:
            if (error.name or "").startswith("hermes_nb.") and (told := exchanged()):
                raise ConfigError(told) from error
            raise
        if stop.stopped:
            turn = self._agent.turn if self._agent is not None else None
            if turn is None or turn is before or turn.reason != "interrupted":
                raise Stopped("stopped") from None
            raise stopped_in_view(self.shell) from None

    async def _ask(self, line: str, cell: str | None) -> None:
        """Run a turn with the options and prompt from a line or cell.

        Raises `ConfigError` for a prompt of code that a turn has left behind.
        """
        from hermes_nb.notebook.execute.collector import current_run
        from hermes_nb.notebook.execute.network import by_call

        if current_run.get() is None and by_call():  # during the turn, it is busy
            message = "code that an agent runs cannot send a prompt; the user can, in a cell"
            raise ConfigError(message)
        arguments, rest = self._parse(line)
        prompt = "\n".join(text for text in (rest, cell) if text and text.strip())
        try:
            await self._wake(search=not arguments.no_context)
        except asyncio.CancelledError:
            self._unsent += [prompt] if prompt and not arguments.dry_run else []
            raise
        from hermes_nb.core.budget import Limits
        from hermes_nb.notebook.turn import TurnOptions

        options = TurnOptions(
            model=arguments.model,
            tools=arguments.tools,
            session=arguments.session,
            new=arguments.new,
            context=not arguments.no_context,
            max_requests=arguments.max_requests,
            limits=Limits(cost=arguments.max_cost, tokens=arguments.max_tokens),
            approve=arguments.approve,
            effort=arguments.effort,
            images=tuple(arguments.image),
            system=arguments.system,
            prefill=arguments.prefill,
            into=arguments.into,
            quiet=arguments.quiet,
            dry_run=arguments.dry_run,
            what_if=arguments.what_if,
        )
        beside = arguments.background or self.background
        if beside and self.agent.can_run_beside(options):
            self.agent.start(prompt, options)
        else:
            await self.agent.ask(prompt, options)

    @by_hermes
    async def _wake(self, *, search: bool = False) -> None:
        """Import the agent's modules in a thread, so that an interrupt is not delayed.

        With `search`, first look for the notebook's page, which may answer during the imports.
        """
        if self._agent is not None:
            return
        if search:
            await asyncio.to_thread(importlib.import_module, "hermes_nb.notebook.frontend")
            from hermes_nb.notebook.frontend import FrontEnd

            self._frontend = FrontEnd(self.shell)
            self._frontend.search()
        await asyncio.to_thread(importlib.import_module, "hermes_nb.notebook.kernel_agent")

    async def _command(self, line: str) -> bool:
        """Run the command in a line; return False if the line is a prompt."""
        from hermes_nb.notebook.commands.table import find, perform

        found = find(line or "help")
        if found is None:
            return False
        command, words = found
        await self._wake()
        if shown := await perform(command, self.agent, words):
            self._show(shown)
        return True

    def _parse(self, line: str) -> tuple[argparse.Namespace, str]:
        """Split a line into its leading options and the prompt, which stays unchanged."""
        parser = self.hermes.parser
        words, rest = split_options(line, parser)
        try:
            arguments = parser.parse_args(words)
        except UsageError as error:  # IPython would only print it, without failing the cell
            raise ConfigError(str(error)) from None
        for name in ("max_requests", "max_cost", "max_tokens"):
            if (value := getattr(arguments, name)) is not None and not 0 < value < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')} needs a number above 0")
        return arguments, rest

    def _configured(self) -> dict[str, Json]:
        return {
            "model": self.model or None,
            "base_url": self.base_url or None,
            "approve": self.approve or None,
            "max_requests": self.max_requests or None,
        }

    def _show(self, markdown: str) -> None:
        from hermes_nb.notebook.display.tables import plain_text, printed
        from hermes_nb.notebook.display.views import show
        from hermes_nb.notebook.shell import has_kernel

        markdown = markdown.replace("`%hermes ", f"`{self.spelled}")
        # Notebook outputs may be compared by their plain text, so its width must not vary.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        plain = plain_text(markdown) if has_kernel(self.shell) else printed(markdown, width)
        show({"text/markdown": markdown, "text/plain": plain})


def exchanged() -> str:
    """Return a message if the installed version differs from the running one, or ""."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("hermes_nb")
    except PackageNotFoundError:
        return ""
    if installed == hermes_nb.__version__:
        return ""
    return (
        f"hermes_nb {installed} was installed while this kernel runs {hermes_nb.__version__}: "
        "restart the kernel, then resume this session with `%hermes resume`"
    )


def use_model(model: ChatModel) -> None:
    """Let the agent of this kernel use a model object, such as a `ScriptedModel`, from now on.

    `%hermes model NAME` switches back to a model by name. Raises `ConfigError` if the extension is
    not loaded, or if Hermes runs the code that calls this.
    """
    _refuse_in_agent_code("the model")
    _magics().agent.use(model)


def use_tools(*tools: Tool | Callable[..., Any]) -> None:
    """Give the agent of this kernel your tools from the next turn on; the conversation continues.

    A plain function is converted as by `@tool`. A tool replaces an earlier one that you added under
    the same name. It cannot replace a tool of Hermes: the next turn reports the conflict.

    Raises `ConfigError` if `%load_ext hermes_nb` has not run, or if Hermes runs the code that calls
    this, and TypeError for an object that cannot become a tool.
    """
    from hermes_nb.tools.schema import as_tool

    _refuse_in_agent_code("tools")
    _magics().agent.use_tools([as_tool(each) for each in tools])


def use_hooks(
    *,
    before_tool: Callable[[ToolContext], str | Awaitable[str | None] | None] | None = None,
    after_tool: Callable[[ToolContext, str], object] | None = None,
    turn_started: Callable[[str], object] | None = None,
    turn_ended: Callable[[str, TurnEnded], object] | None = None,
) -> None:
    """Call your functions before and after tool calls and turns from now on.

    They replace those of an earlier call; without arguments, there are none. For the functions see
    `hermes_nb.tools.hooks.Hooks`.

    Raises `ConfigError` if `%load_ext hermes_nb` has not run, or if Hermes runs the code that calls
    this.
    """
    from hermes_nb.tools.hooks import Hooks

    _refuse_in_agent_code("hooks")
    hooks = Hooks(
        before_tool=before_tool,
        after_tool=after_tool,
        turn_started=turn_started,
        turn_ended=turn_ended,
    )
    _magics().agent.use_hooks(hooks)


def last_turn() -> Turn | None:
    """Return the last turn of this kernel's agent, with its events, usage and cost.

    None before the first turn. Raises `ConfigError` if `%load_ext hermes_nb` has not run.
    """
    return _magics().agent.turn


def _refuse_in_agent_code(what: str) -> None:
    """Raise `ConfigError` if Hermes runs the calling code, or has run what this code came from."""
    from hermes_nb.notebook.execute.collector import current_run
    from hermes_nb.notebook.execute.network import by_call

    if current_run.get() is not None or by_call():
        raise ConfigError(f"code that Hermes runs cannot change {what}")


def _magics() -> HermesMagics:
    from IPython.core.getipython import get_ipython

    shell: Foreign = get_ipython()
    found: HermesMagics | None = hermes_magics(shell) if shell else None
    if found is None:
        raise ConfigError("hermes_nb is not loaded here; run `%load_ext hermes_nb` first")
    return found


def load(shell: Shell) -> None:
    """Register the magics and input transformers; calling it again replaces them."""
    unload(shell)
    magics = HermesMagics(shell)
    magics.take(shell)
    watch_cells(shell)
    code_lock.load(shell)
    if (completer := getattr(shell, "Completer", None)) is not None:
        completions = Completions(magics)
        completer.custom_matchers.append(completions.matcher)
        completions.answer_while_busy(getattr(shell, "kernel", None))
    shell.input_transformers_cleanup.extend([checkpointed, questions])
    shell.input_transformers_post.append(awaited)


def unload(shell: Shell) -> None:
    """Remove what `load` registered, and stop background work."""
    for hooks in (shell.input_transformers_cleanup, shell.input_transformers_post):
        # Compare module names, not identity: a reload creates new function objects.
        where = awaited.__module__
        hooks[:] = [hook for hook in hooks if getattr(hook, "__module__", "") != where]
    if (completer := getattr(shell, "Completer", None)) is not None:
        matchers = completer.custom_matchers
        matchers[:] = [each for each in matchers if getattr(each, "hermes", False) is False]
    if (handlers := getattr(getattr(shell, "kernel", None), "control_handlers", None)) is not None:
        handlers[ASKED] = shell.kernel.comm_info_request
    while (magics := hermes_magics(shell)) is not None:
        shell.configurables.remove(magics)
        magics.give_back(shell)
        magics.close()
    code_lock.unload(shell)
