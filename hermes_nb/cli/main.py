"""The command line: parse the arguments, run a subcommand, and turn errors into exit codes.

Only `argparse` is imported until the subcommand is known.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence

import hermes_nb
from hermes_nb.cli.command import (
    APPROVALS,
    CODES,
    FAILED,
    OK,
    STOPPED,
    USAGE,
    Subcommand,
    UsageProblem,
    add,
    count,
    installed,
    perform,
    seconds,
)
from hermes_nb.core.errors import HermesError

MODES = ("record", "replay", "auto", "off")
FORMATS = ("markdown", "notebook", "jsonl")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape unencodable characters instead of failing
            stream.reconfigure(errors="backslashreplace")
    before = {number: signal.signal(number, _stop) for number in ending()}
    try:
        words = sys.argv[1:] if argv is None else argv
        top = parser(words[0] if words else "")
        arguments = top.parse_args(argv)
        if not arguments.run:  # no subcommand was given
            top.print_help()
            raise SystemExit(USAGE)
        code = perform(arguments.run, arguments)
        sys.stdout.flush()  # flush here, so that BrokenPipeError is handled below
    except HermesError as error:
        from hermes_nb.core.escapes import visible
        from hermes_nb.safety.redact import redact

        print(f"jupyter hermes: {redact(visible(str(error), lines=True))}", file=sys.stderr)
        return USAGE if isinstance(error, UsageProblem) else FAILED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # the reader has closed the pipe, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    else:
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending() -> list[int]:
    """Return the signals that end the program: SIGTERM, and SIGHUP unless it is ignored."""
    hangup: int = getattr(signal, "SIGHUP", 0)  # Windows has none
    closed = hangup and signal.getsignal(hangup) in (signal.SIG_DFL, _stop)
    return [signal.SIGTERM, *([hangup] if closed else [])]


def _stop(*_: object) -> None:
    """Handle a termination signal like Ctrl-C, which also ends all child processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells set this for background jobs
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def parser(wanted: str = "") -> argparse.ArgumentParser:
    """Return the parser for our own subcommands, and for the `wanted` one from another package.

    If `wanted` is not the name of a subcommand, the subcommands from all packages are included.
    """
    top = argparse.ArgumentParser(
        prog="jupyter hermes",
        description="Hermes, an agent in the Jupyter kernel. COMMAND --help explains a command.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.set_defaults(run="")
    version = f"hermes_nb {hermes_nb.__version__}"
    top.add_argument(
        "--version", action="version", version=version, help="show the version and exit"
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    own = _builtin_subcommands()
    added: dict[str, Subcommand] = {}
    if wanted not in own:
        added = installed(frozenset(own), wanted) or installed(frozenset(own))
    for name, command in {**own, **added}.items():
        add(commands, name, command)
    return top


def _builtin_subcommands() -> dict[str, Subcommand]:
    return {
        "enable": Subcommand(
            about="make %%hermes work in every notebook, without %load_ext",
            arguments=_enabling,
            page="command-line.md",
            examples=("enable", "enable --kernelspec python3"),
            run="hermes_nb.cli.install:enable",
        ),
        "disable": Subcommand(
            about="undo enable",
            arguments=_enabling,
            page="command-line.md",
            examples=("disable", "disable --sys-prefix"),
            run="hermes_nb.cli.install:disable",
        ),
        "doctor": Subcommand(
            about="check the installation, the model, the key and the sandbox",
            arguments=_doctor,
            page="command-line.md",
            examples=("doctor", "doctor --offline --json"),
            run="hermes_nb.cli.install:doctor",
        ),
        "sessions": Subcommand(
            about="list or search past sessions",
            arguments=_sessions,
            page="command-line.md",
            examples=("sessions", 'sessions --search "flipper length"'),
            run="hermes_nb.cli.sessions:list_command",
        ),
        "export": Subcommand(
            about="write a session to a file, without secrets",
            arguments=_export,
            page="command-line.md",
            examples=("export penguins", "export penguins --format notebook -o talk.ipynb"),
            run="hermes_nb.cli.sessions:export",
        ),
        "run": Subcommand(
            about="run a notebook or a prompt without interaction",
            arguments=_run,
            page="howto/headless.md",
            examples=(
                "run report.ipynb --output done.ipynb --approve edits",
                'run "Summarise the files in data/"',
            ),
            run="hermes_nb.cli.run:run",
        ),
        "verify": Subcommand(
            about="run a notebook in a fresh kernel and compare its outputs",
            arguments=_verify,
            page="howto/verify.md",
            examples=("verify report.ipynb", "verify report.ipynb --yes --timeout 600"),
            run="hermes_nb.cli.verify:run",
        ),
    }


def _doctor(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", action="store_true", help="print the findings as JSON")
    made.add_argument("--offline", action="store_true", help="do not ask any server for its models")


def _enabling(made: argparse.ArgumentParser) -> None:
    where = made.add_mutually_exclusive_group()
    for level, about in (
        ("user", "for all your kernels, in every environment (default otherwise)"),
        ("sys-prefix", "for the kernels of this environment (default in a virtual one)"),
        ("system", "for all users of this machine"),
    ):
        where.add_argument(
            f"--{level}", dest="level", action="store_const", const=level, help=about
        )
    where.add_argument("--kernelspec", metavar="NAME", help="for the kernels of one kernelspec")


def _sessions(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--search", metavar="QUERY", help="search messages instead of listing sessions"
    )
    made.add_argument(
        "--limit", type=count, default=20, metavar="N", help="maximum number of lines (default: 20)"
    )
    made.add_argument("--json", action="store_true", help="print JSON")


def _export(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "session",
        metavar="SESSION",
        help="a session: its ID, the beginning of its ID, or its title",
    )
    made.add_argument("--format", choices=FORMATS, default="markdown", help="default: markdown")
    made.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="file to write (default: -, standard output)",
    )


def _run(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "what",
        type=_notebook_or_prompt,
        metavar="NOTEBOOK|PROMPT",
        help="a notebook, a prompt, or - to read the prompt from stdin",
    )
    made.add_argument("--approve", choices=APPROVALS, help="what may run without approval")
    made.add_argument("--model", metavar="NAME", help="the model to use")
    made.add_argument(
        "--max-requests", type=count, metavar="N", help="maximum model requests in a turn"
    )
    made.add_argument(
        "--cassette", choices=MODES, help="record the model's replies, or replay them"
    )
    notebook = made.add_argument_group("a notebook")
    notebook.add_argument(
        "--output", metavar="FILE", help="save the executed notebook here (default: nowhere)"
    )
    notebook.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="maximum seconds for a cell (default: no limit)",
    )
    notebook.add_argument(
        "--accept", action="store_true", help="use replies that were edited in the cassette"
    )
    notebook.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], dest="parameters",
        metavar=("NAME", "VALUE"), help="set a variable below the cell tagged `parameters`",
    )  # fmt: skip
    prompt = made.add_argument_group("a prompt")
    prompt.add_argument("--session", metavar="NAME", help="continue this session, or start it")
    prompt.add_argument("--json", action="store_true", help="print events as JSON lines")
    prompt.add_argument(
        "--learn", action="store_true", help="let background reviews save memories and skills"
    )


def _verify(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "file", type=_notebook_or_prompt, metavar="NOTEBOOK", help="the notebook to run"
    )
    made.add_argument("--yes", action="store_true", help="run the notebook without asking")
    made.add_argument(
        "--timeout", type=seconds, metavar="S", help="maximum seconds (default: no limit)"
    )


def _notebook_or_prompt(text: str) -> str:
    """Return a notebook or prompt; raise `UsageProblem` if the notebook does not exist."""
    if text.endswith(".ipynb") and "\n" not in text and not os.access(text, os.F_OK):
        raise UsageProblem(f"there is no notebook {text}")
    return text
