"""`%hermes` and `%%hermes`: doorbells. They read the line, find the agent and hand over.

Both are async: an input transformer puts `await` before the call that IPython generates, so that a
turn runs on the kernel's own loop. Only then are widget clicks delivered while a cell runs, and a
stop is noticed at once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from traitlets import Int, Unicode, observe

from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.commands.completion import Completions
from hermes_nb.notebook.input import transformers
from hermes_nb.notebook.input.magic_line import split_options
from hermes_nb.notebook.keys import refuse_key

if TYPE_CHECKING:
    from hermes_nb.app.turn import Turn
    from hermes_nb.core.protocols import ChatModel
    from hermes_nb.core.tools import Tool


@magics_class
class HermesMagics(Magics):
    """The agent's magics; `%config HermesMagics.model = "…"` sets what no option does."""

    model = Unicode("", help="Model name; `embedded` is the built-in one.").tag(config=True)
    base_url = Unicode("", help="Address of an OpenAI-compatible server.").tag(config=True)
    approve = Unicode("", help="What runs without asking: ask, edits, all, never.").tag(config=True)
    max_requests = Int(0, help="Model requests a turn; 0 means 15.").tag(config=True)

    def __init__(self, shell: Any) -> None:  # noqa: ANN401 - IPython's shell
        self._resident: Any = None  # before the traits, which may be set by a configuration
        super().__init__(shell=shell, parent=shell)

    @observe("model", "base_url")
    def _another_model(self, _change: Any) -> None:  # noqa: ANN401 - traitlets' own
        """Have `%config` work on an agent that is awake: the next turn asks the new model."""
        if self.awake is not None:
            self.awake.change_models()

    def close(self) -> None:
        """Stop what runs in the background."""
        if self._resident is not None:
            self._resident.close()

    @property
    def awake(self) -> Any:  # noqa: ANN401 - imported on first use
        """The agent of this kernel if it has been used, else None."""
        return self._resident

    @property
    def resident(self) -> Any:  # noqa: ANN401 - imported on first use
        """The agent of this kernel, made on first use."""
        if self._resident is None:
            from hermes_nb.notebook.resident import Resident

            self._resident = Resident(self.shell, overrides=self._configured, say=self._show)
        return self._resident

    @no_var_expand
    @magic_arguments()
    @argument("--model", default="", metavar="NAME", help="use this model from now on")
    @argument(
        "--tools", default="", metavar="NAMES", help="only these tools or toolsets, by commas"
    )
    @argument("--session", default="", metavar="NAME", help="go on with, or start, this session")
    @argument("--new", action="store_true", help="start a new session")
    @argument("--no-context", action="store_true", help="do not tell the model what changed here")
    @argument("--max-requests", type=int, metavar="N", help="model requests of this turn, 15 else")
    @argument("--max-cost", type=float, metavar="USD", help="dollars that this turn may cost")
    @argument("--max-tokens", type=int, metavar="N", help="tokens this turn may send and receive")
    @argument(
        "--approve",
        choices=("ask", "edits", "all", "never"),
        help="what may run without asking, in this turn",
    )
    @argument(
        "--image",
        action="append",
        default=[],
        metavar="EXPR",
        help="show the model this figure, image, array or file; may be given several times",
    )
    @argument("--into", default="", metavar="NAME", help="put the answer into this variable")
    @argument("--quiet", action="store_true", help="show nothing until the turn is over")
    @argument("--dry-run", action="store_true", help="show the request and send nothing")
    @argument("prompt", nargs=argparse.REMAINDER, help="the prompt, or a command (%%hermes help)")
    @line_cell_magic
    async def hermes(self, line: str, cell: str | None = None) -> None:
        """Ask Hermes: `%%hermes` sends the cell as a prompt, `%hermes PROMPT` a line.

        `%hermes help` lists the commands (status, model, tools, resume, …). Options stand before
        the prompt; `--` ends them. `--into NAME --quiet` shows a status line alone; `--dry-run
        --into NAME` puts the request into a dict.
        """
        refuse_key(self.shell, line)
        if cell is None and await self._command(line):
            return
        arguments, rest = self._parse(line)
        prompt = "\n".join(text for text in (rest, cell) if text and text.strip())
        from hermes_nb.core.budget import Limits
        from hermes_nb.notebook.input.options import TurnOptions

        options = TurnOptions(
            model=arguments.model,
            tools=arguments.tools,
            session=arguments.session,
            new=arguments.new,
            context=not arguments.no_context,
            max_requests=arguments.max_requests,
            limits=Limits(cost=arguments.max_cost, tokens=arguments.max_tokens),
            approve=arguments.approve,
            images=tuple(arguments.image),
            into=arguments.into,
            quiet=arguments.quiet,
            dry_run=arguments.dry_run,
        )
        await self.resident.ask(prompt, options)

    async def _command(self, line: str) -> bool:
        """Run the command that a line names; say whether it was one."""
        from hermes_nb.notebook.commands.table import find, perform

        found = find(line or "help")
        if found is None:
            return False
        command, words = found
        if shown := await perform(command, self.resident, words):
            self._show(shown)
        return True

    def _parse(self, line: str) -> tuple[argparse.Namespace, str]:
        """Split a line into its leading options and the prompt, which is taken as it stands."""
        parser = self.hermes.parser
        words, rest = split_options(line, parser)
        try:
            arguments = parser.parse_args(words)
        except UsageError as error:  # which IPython prints without failing the cell's outputs
            raise ConfigError(str(error)) from None
        for name in ("max_requests", "max_cost", "max_tokens"):
            if (value := getattr(arguments, name)) is not None and not 0 < value < math.inf:
                message = f"--{name.replace('_', '-')} needs a number above 0"
                raise ConfigError(message)
        return arguments, rest

    def _configured(self) -> dict[str, Any]:
        return {
            "model": self.model or None,
            "base_url": self.base_url or None,
            "approve": self.approve or None,
            "max_requests": self.max_requests or None,
        }

    def _show(self, markdown: str) -> None:
        from hermes_nb.notebook.display.showing import show
        from hermes_nb.notebook.display.transcript import plain_text, printed
        from hermes_nb.notebook.display.view import has_kernel

        # Nobody reads the plain text in a notebook, but its runs are compared with recorded ones.
        plain = plain_text(markdown) if has_kernel(self.shell) else printed(markdown)
        show({"text/markdown": markdown, "text/plain": plain})


def use_model(model: ChatModel) -> None:
    """Let the agent of this kernel use a model object, such as a `ScriptedModel`, from now on.

    `%hermes model NAME` goes back to one by name. Raises `ConfigError` where it is not
    loaded yet.
    """
    _magics().resident.use(model)


def use_tools(*tools: Tool | Callable[..., Any]) -> None:
    """Let the agent of this kernel call tools of yours from now on; the conversation stays.

    A plain function becomes a tool as by `@tool`. One handed over earlier under the same name is
    replaced, one of Hermes' own is not: the next turn says so. Raises `ConfigError` where
    `%load_ext hermes_nb` has not run, and TypeError for what no tool can be made of.
    """
    from hermes_nb.tools.schema import as_tool

    _magics().resident.use_tools([as_tool(each) for each in tools])


def last_turn() -> Turn | None:
    """Return the turn that this kernel's agent took last, with its events, usage and cost.

    None before the first one. Raises `ConfigError` where `%load_ext hermes_nb` has not run.
    """
    turn: Turn | None = _magics().resident.turn
    return turn


def _magics() -> HermesMagics:
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    magics = shell and shell.magics_manager.registry.get("HermesMagics")
    if not magics:
        message = "hermes_nb is not loaded here; run `%load_ext hermes_nb` first"
        raise ConfigError(message)
    found: HermesMagics = magics
    return found


def load(shell: Any) -> None:  # noqa: ANN401 - IPython's shell
    """Register the magics and the transformer, once however often this is called."""
    unload(shell)
    magics = HermesMagics(shell)
    shell.register_magics(magics)
    if (completer := getattr(shell, "Completer", None)) is not None:
        completer.custom_matchers.append(Completions(magics).matcher)
    shell.input_transformers_cleanup.append(transformers.questions)
    shell.input_transformers_post.append(transformers.awaited)


def unload(shell: Any) -> None:  # noqa: ANN401 - IPython's shell
    """Take back what `load` registered, and stop what runs in the background."""
    for hooks in (shell.input_transformers_cleanup, shell.input_transformers_post):
        # By where they are from: after a reload they are other objects.
        ours = transformers.__name__
        hooks[:] = [hook for hook in hooks if getattr(hook, "__module__", "") != ours]
    if (completer := getattr(shell, "Completer", None)) is not None:
        matchers = completer.custom_matchers
        matchers[:] = [each for each in matchers if getattr(each, "hermes", False) is False]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("hermes", None)
    magics = shell.magics_manager.registry.pop("HermesMagics", None)
    if magics is not None:
        magics.close()
    if shell.configurables:
        shell.configurables[:] = [
            each for each in shell.configurables if type(each).__name__ != "HermesMagics"
        ]
