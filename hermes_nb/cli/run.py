"""`jupyter hermes run`: run a prompt as one turn in a session, or a notebook in a fresh kernel.

It is meant for shells and scripts, and doesn't require interaction.

With `--json`, each event of the turn is printed as one line: an object with `event`, the name of
its class in `hermes_nb.core.events`, and that class's fields. Messages have the form of
`Message.to_dict`. Secrets in text are redacted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import keyword
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.agent.approvals import answer_of, unanswered
from hermes_nb.agent.learning.reviews import Reviews, looking_back
from hermes_nb.agent.runtime import Opening
from hermes_nb.agent.session.manager import the_one
from hermes_nb.agent.session.session import Session
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.cli.command import FAILED, MISSED, OK, REFUSED, STOPPED, UsageProblem
from hermes_nb.cli.terminal import ask_on_terminal
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import Event, MessageAdded, TurnEnded
from hermes_nb.core.files import write_atomic
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.models.cassette import is_miss
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.approval import offer_servers, question_line
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.interrupt import stoppable
from hermes_nb.notebook.shell import Foreign
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from hermes_nb.notebook.execute.fresh_kernel import Failure

FOR_NOTEBOOKS = {
    "output": "--output",
    "timeout": "--timeout",
    "parameters": "-p",
    "accept": "--accept",
}
"""Options that apply only to notebooks."""
FOR_PROMPTS = {"session": "--session", "json": "--json", "learn": "--learn"}
"""Options that apply only to prompts."""
_FILE = "HERMES_NB_CASSETTE_FILE"
TAG, INJECTED = "parameters", "injected-parameters"
_WORDS = {"true": True, "false": False, "none": None}
REMEDY = "`jupyter hermes run --approve all`"


def run(arguments: argparse.Namespace) -> int:
    """Run a notebook or prompt and return the exit code; raise `UsageProblem`."""
    what: str = arguments.what
    is_notebook = what.endswith(".ipynb") and "\n" not in what
    for name, option in (FOR_PROMPTS if is_notebook else FOR_NOTEBOOKS).items():
        if getattr(arguments, name):
            message = f"{option} cannot be used with {'a notebook' if is_notebook else 'a prompt'}"
            raise UsageProblem(message)
    if is_notebook:
        return _notebook(Path(what), arguments)
    return _prompt(sys.stdin.read() if what == "-" else what, arguments)


def _prompt(prompt: str, arguments: argparse.Namespace) -> int:
    if not prompt.strip():
        raise UsageProblem("the prompt is empty")
    names = ("model", "approve", "max_requests", "cassette")
    wishes = {name: getattr(arguments, name) for name in names}
    settings = load_settings(overrides=wishes)
    settings.insist(*(name for name in names if wishes[name] is not None))
    wanted: str = arguments.session or ""
    opening = Opening(
        settings,
        approver=TerminalApprover(),
        tell=_warn,
        source="terminal",
        joined=lambda store: the_one(store, wanted) if wanted else None,
    )
    if sys.stdin.isatty():
        asyncio.run(offer_servers(settings, ask_on_terminal, set()))
    seen = Transcript()
    turn = _turn(prompt, opening, wanted or prompt, seen, arguments)
    ending = asyncio.run(turn)
    for call in seen.refused:
        _warn(f"refused: {call}")
    if ending is None or ending.reason == "interrupted":
        _warn("stopped")
        return STOPPED
    if ending.reason == "answered":
        if ending.note:
            _warn(ending.note)
        return REFUSED if seen.refused else OK
    _warn(redact(visible(ending.error or "the turn's budget was used up before the turn finished")))
    return MISSED if is_miss(ending.error) else FAILED


async def _turn(
    prompt: str, opening: Opening, title: str, seen: Transcript, wanted: argparse.Namespace
) -> TurnEnded | None:
    """Run the turn and return its last event, or None if it was interrupted before it started."""
    ending = None
    try:
        with stoppable():
            session = opening.session(one_line(title, 60))
            if told := traits_of(session.agent.model).notice:
                _warn(told)
            seen.model, seen.describe = session.agent.model.name, session.agent.tools.describe
            reviews = looking_back(opening, session) if wanted.learn else None
            show, finish = _shower(seen, as_json=wanted.json)
            try:
                async with aclosing(session.turn(prompt)) as events:
                    async for event in events:
                        show(event)
                        ending = event if isinstance(event, TurnEnded) else None
            finally:
                finish()
            if reviews is not None and ending and ending.reason in ("answered", "budget"):
                await _looked_back(reviews, session)
    finally:
        await opening.aclose()
    return ending


async def _looked_back(reviews: Reviews, session: Session) -> None:
    """Run a background review if one is due, wait for it, and report what it saved."""
    reviews.after_turn(session, live=False)
    try:
        await in_thread(reviews.finish)
    finally:
        reviews.stop()
    if told := reviews.news():
        _warn(told)


def _shower(
    seen: Transcript, *, as_json: bool
) -> tuple[Callable[[Event], None], Callable[[], None]]:
    """Return two functions: one displays an event (or collects the answer), one ends the output."""
    if sys.stdout.isatty() and not as_json:
        from hermes_nb.notebook.turn import terminal_view  # slow import

        view = terminal_view(seen)
        return view, view.close
    said = ""

    def keep(event: Event) -> None:
        nonlocal said
        seen(event)
        if as_json:
            print(json.dumps(line_of(event)), flush=True)
        elif isinstance(event, MessageAdded) and event.message.role == "assistant":
            said = event.message.text or said

    def finish() -> None:
        if said:
            print(redact(visible(said, lines=True)), flush=True)

    return keep, finish


def line_of(event: Event) -> dict[str, object]:
    """Return an event in the form that `--json` prints."""
    told = {each.name: _plain(getattr(event, each.name)) for each in fields(event)}
    return {"event": type(event).__name__, **told}


def _plain(value: object) -> object:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Message):
        return _plain(value.to_dict())
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | None) else str(value)


class TerminalApprover:
    """Asks for approval on standard error; denies it if standard input is not a terminal."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer; anything but an approval is a denial with a reason."""
        if not sys.stdin.isatty():
            return Approval("deny", unanswered(request, REMEDY))
        shown = visible(redact(request.shown), lines=True)
        title = f"\nHermes wants to use {request.tool.name} ({visible(request.why)}):\n{shown}\n"
        answer = ask_on_terminal(title + question_line(request))
        if not answer:
            return Approval("deny", unanswered(request, REMEDY))
        return answer_of(answer, request)


def _warn(text: object) -> None:
    """Print a Markdown message as plain text on standard error."""
    _print_status(str(text).replace("`", "").replace("**", ""))


def _print_status(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _notebook(file: Path, arguments: argparse.Namespace) -> int:
    """Run a notebook, write the output file, report the result, and return the exit code."""
    import nbformat

    notebook = read(file)
    if arguments.parameters:
        _parametrise(notebook, arguments.parameters)
    if arguments.accept:
        from hermes_nb.models.cassette_file import Tape

        Tape(_cassette(file)).accept()
    output = Path(arguments.output) if arguments.output else None
    if output is not None and not output.absolute().parent.is_dir():
        raise UsageProblem(f"there is no directory {output.absolute().parent}")
    stopped, failure = asyncio.run(_cells(notebook, file.absolute(), arguments))
    if output is not None:
        try:
            write_atomic(output, nbformat.writes(notebook).encode("utf-8", "replace"))
        except OSError as error:
            raise ConfigError(f"cannot write {output}: {error.strerror or error}") from error
    if stopped:
        _print_status("stopped")
        return STOPPED
    refused = list(_refused(notebook))
    for line in refused:
        _print_status(line)
    if failure is None:
        return REFUSED if refused else OK
    _print_status(redact(visible(str(failure))))
    return MISSED if is_miss(failure.error) else FAILED


async def _cells(
    notebook: Foreign, file: Path, arguments: argparse.Namespace
) -> tuple[bool, Failure | None]:
    """Run the cells; return whether Ctrl-C ended the run, and the failed cell, if any."""
    from hermes_nb.notebook.execute.fresh_kernel import run_notebook

    wanted = {
        "HERMES_NB_APPROVE": arguments.approve,
        "HERMES_NB_MODEL": arguments.model,
        "HERMES_NB_MAX_REQUESTS": arguments.max_requests,
        "HERMES_NB_CASSETTE": arguments.cassette,
        # the kernel cannot find its notebook's path
        _FILE: _cassette(file) if arguments.cassette else None,
    }
    failure = None

    def tell(number: int, source: str) -> None:
        if sys.stderr.isatty():  # no progress in pipes and logs
            gist = one_line(visible(source, lines=True), 60)
            _print_status(f"[{number}/{len(notebook.cells)}] {gist}")

    with stoppable() as stop:
        failure = await run_notebook(
            notebook,
            directory=file.parent,
            env={name: str(value) for name, value in wanted.items() if value is not None},
            timeout=arguments.timeout,
            progress=tell,
        )
    return stop.stopped, failure


def _cassette(file: Path) -> Path:
    from hermes_nb.models.cassette import SUFFIX

    return Path(os.environ.get(_FILE) or file.absolute().with_name(file.stem + SUFFIX))


def read(file: Path) -> Foreign:
    """Return a notebook in nbformat 4; raise `UsageProblem` if it is not one."""
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about cells without ids, which get new ones
            notebook = nbformat.read(file, as_version=4)
            nbformat.validate(notebook, relax_add_props=True)  # allows fields from other tools
    except Exception as error:  # nbformat may raise anything for invalid files
        message = f"{file} cannot be read as a notebook: {one_line(str(error), 300)}"
        raise UsageProblem(message) from error
    return notebook


def _parametrise(notebook: Foreign, parameters: Sequence[tuple[str, str]]) -> None:
    """Insert a cell that sets the parameters, as papermill does; raise `UsageProblem`.

    It is inserted below the cell tagged `parameters` or at the top, replacing an earlier run's
    cell.
    """
    import nbformat

    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    if language != "python":
        raise UsageProblem(f"-p sets Python variables, and this notebook is in {language}")
    lines = ["# Parameters"]
    for name, text in parameters:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageProblem(f"{name!r} is not a valid variable name")
        lines.append(f"{name} = {value_of(text)!r}")
    # A random id would make the output differ in every run.
    made = nbformat.v4.new_code_cell("\n".join(lines), id=INJECTED, metadata={"tags": [INJECTED]})
    tags = [(each, each.metadata.get("tags", ())) for each in notebook.cells]
    cells = [(each, tagged) for each, tagged in tags if INJECTED not in tagged]
    at = next((at for at, (_, tagged) in enumerate(cells, 1) if TAG in tagged), 0)
    notebook.cells = [each for each, _ in cells]
    notebook.cells.insert(at, made)


def value_of(text: str) -> str | float | bool | None:
    """Parse a command line value: None, a boolean, a number, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):  # inf and nan have no literal
            return number
    return text


def _refused(notebook: Foreign) -> Iterator[str]:
    """Yield a line for each refused call, read from the cells' outputs."""
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", ()):
            for call in output.get("metadata", {}).get("hermes", {}).get("refused", ()):
                yield f"cell {number}: refused: {redact(visible(str(call)))}"
