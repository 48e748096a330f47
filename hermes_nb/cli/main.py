"""The command line: parse the words, hand over, and turn what happens into an exit code.

Nothing but `argparse` is imported before it is known what is asked for.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import hermes_nb
from hermes_nb.core.errors import HermesError

OK = 0
FAILED = 1
USAGE = 2
"""The same as for words that `argparse` refuses."""
MISSED = 3
"""A replay found no recording for what was asked."""
REFUSED = 3
"""Calls were refused, so less was done than was asked: as a miss, a run that cannot be trusted."""
STOPPED = 130
"""Ctrl-C, or a terminate signal: what shells say of a program that a SIGINT ended."""
CODES = (
    "exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing to replay, or calls were refused, "
    "130 stopped"
)
MODES = ("record", "replay", "auto", "off")
APPROVALS = ("ask", "edits", "all", "never")
FORMATS = ("markdown", "notebook", "jsonl")
FORMS = ("chat", "sharegpt")
_MISS = re.compile(r"no recording in .{1,300}? fits this request|there are no recordings in ")


class UsageProblem(HermesError):
    """The command line makes no sense as it stands; nothing was done."""


def is_miss(text: str) -> bool:
    """Say whether an error is that of a replay which found no recording.

    Its text is all that leaves a kernel, or a turn. A test holds it against what `CassetteMiss`
    says.
    """
    return _MISS.search(text) is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what it cannot say is no reason to break
            stream.reconfigure(errors="backslashreplace")
    before = {number: signal.signal(number, _stop) for number in ending()}
    try:
        top = parser()
        arguments = top.parse_args(argv)
        if not arguments.run:  # nothing was named, so nothing was done
            top.print_help()
            raise SystemExit(USAGE)
        module, _, function = arguments.run.partition(":")
        code = int(getattr(import_module(f"hermes_nb.cli.{module}"), function)(arguments))
        sys.stdout.flush()  # here, where a reader that is gone is no surprise
    except HermesError as error:
        from hermes_nb.core.text import visible
        from hermes_nb.safety.redact import redact

        print(f"jupyter hermes: {redact(visible(str(error), lines=True))}", file=sys.stderr)
        return USAGE if isinstance(error, UsageProblem) else FAILED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    else:
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending() -> list[int]:
    """Return the signals to end at: to terminate, and a closed terminal's unless it is ignored."""
    hangup: int = getattr(signal, "SIGHUP", 0)  # Windows has none
    closed = hangup and signal.getsignal(hangup) in (signal.SIG_DFL, _stop)
    return [signal.SIGTERM, *([hangup] if closed else [])]


def _stop(*_: object) -> None:
    """End as Ctrl-C does, with everything that was started."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="jupyter hermes", description="Hermes, the agent in the Jupyter kernel.", epilog=CODES
    )
    top.set_defaults(run="")
    version = f"hermes_nb {hermes_nb.__version__}"
    top.add_argument(
        "--version", action="version", version=version, help="show the version and exit"
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for name, about in (
        ("enable", "have %%hermes work without %load_ext"),
        ("disable", "take that back"),
    ):
        _enabling(_command(commands, name, about, f"install:{name}"))
    doctor = _command(commands, "doctor", "check what Hermes needs", "install:doctor")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("--offline", action="store_true", help="ask no server for its models")
    _sessions(_command(commands, "sessions", "list past sessions", "sessions:list_command"))
    _export(_command(commands, "export", "write a session, without secrets", "sessions:export"))
    _run(_command(commands, "run", "run a notebook or a prompt, with nobody there", "run:run"))
    _chat(_command(commands, "chat", "talk to Hermes in this terminal", "chat:chat"))
    _jobs(_command(commands, "jobs", "run what is due, or see to what is scheduled", "jobs:jobs"))
    _gateway(_command(commands, "gateway", "answer in chat apps", "gateway:gateway"))
    _skills(_command(commands, "skills", "sign the skills that a hub shares", "skills:skills"))
    about = "write sessions as training data, or lead some for it"
    _trajectories(_command(commands, "trajectories", about, "trajectories:trajectories"))
    about = "hold a hub's key of a model, with a budget for each user"
    served = _command(commands, "proxy", about, "proxy:proxy")
    served.add_argument("--config", metavar="FILE", required=True, help="upstream, models, budgets")
    audit = _command(commands, "audit", "look for gaps in files of the audit", "sessions:audit")
    audit.add_argument("files", metavar="FILE", nargs="+", help="in their order, the oldest first")
    _store(_command(commands, "store", "sessions on a PostgreSQL server", "store:check"))
    return top


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str, runs: str
) -> argparse.ArgumentParser:
    shown = about.replace("%", "%%")
    made = commands.add_parser(
        name, help=shown, description=f"{shown[0].upper()}{shown[1:]}.", epilog=CODES
    )
    made.set_defaults(run=runs)
    return made


def _enabling(made: argparse.ArgumentParser) -> None:
    where = made.add_mutually_exclusive_group()
    for level, about in (
        ("user", "for your kernels, in whatever environment"),
        ("sys-prefix", "for this environment's kernels"),
        ("system", "for everybody on this machine"),
    ):
        where.add_argument(
            f"--{level}", dest="level", action="store_const", const=level, help=about
        )
    where.add_argument("--kernelspec", metavar="NAME", help="for the kernels of one kernelspec")


def _sessions(made: argparse.ArgumentParser) -> None:
    made.add_argument("--search", metavar="QUERY", help="find what was said instead")
    made.add_argument(
        "--limit", type=_count, default=20, metavar="N", help="at most N (default 20)"
    )
    made.add_argument("--json", action="store_true", help="print JSON")


def _export(made: argparse.ArgumentParser) -> None:
    made.add_argument("session", metavar="SESSION", help="an id, its beginning, or a title")
    made.add_argument("--format", choices=FORMATS, default="markdown")
    made.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="where to; - is standard output"
    )


def _run(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "what", type=_what, metavar="NOTEBOOK|PROMPT", help="FILE.ipynb, a prompt, or - for stdin"
    )
    made.add_argument("--approve", choices=APPROVALS, help="what may run without asking")
    made.add_argument("--model", metavar="NAME", help="the model to ask")
    made.add_argument(
        "--max-requests", type=_count, metavar="N", help="model requests allowed in a turn"
    )
    made.add_argument("--cassette", choices=MODES, help="record or replay what models say")
    notebook = made.add_argument_group("a notebook")
    notebook.add_argument(
        "--output", metavar="FILE", help="write it there as it ran; without, nothing is written"
    )
    notebook.add_argument(
        "--timeout", type=_seconds, metavar="S", help="seconds a cell may take (default: any)"
    )
    notebook.add_argument(
        "--accept", action="store_true", help="let answers count that were edited in the cassette"
    )
    notebook.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], dest="parameters",
        metavar=("NAME", "VALUE"), help="set a variable behind the cell tagged `parameters`",
    )  # fmt: skip
    prompt = made.add_argument_group("a prompt")
    prompt.add_argument("--session", metavar="NAME", help="go on with, or start, this session")
    prompt.add_argument("--json", action="store_true", help="print events as JSON lines")
    prompt.add_argument("--learn", action="store_true", help="look back when it is time to learn")


def _chat(made: argparse.ArgumentParser) -> None:
    made.add_argument("--session", metavar="NAME", help="go on with, or start, this session")
    made.add_argument("--model", metavar="NAME", help="the model to ask")
    made.add_argument("--approve", choices=APPROVALS, help="what may run without asking")


def _jobs(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "words", metavar="WORD", nargs="*",
        help="CRON PROMPT|NOTEBOOK, list, show, pause, resume, run, remove or history [ID], "
        "install, uninstall; `run` alone runs what is due",
    )  # fmt: skip
    made.add_argument(
        "--approve", choices=APPROVALS, default="ask", help="what may run without asking"
    )
    made.add_argument("--model", default="", metavar="NAME", help="the model to ask")
    made.add_argument(
        "--timeout", type=_seconds, default=3_600.0, metavar="S",
        help="seconds a run may take (default 3600)",
    )  # fmt: skip
    made.add_argument("--zone", default="", metavar="NAME", help="time zone (default: here)")
    made.add_argument("--cwd", default="", metavar="DIRECTORY", help="working directory")
    made.add_argument(
        "--to", default="", metavar="ADAPTER:CHAT", help="send what it says by the gateway"
    )
    made.add_argument("--yes", action="store_true", help="agree to what would be asked")


def _gateway(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "adapters", metavar="ADAPTER", nargs="*",
        help="such as telegram; else all that `gateway:` in config.yaml sets up, or the web page",
    )  # fmt: skip
    made.add_argument("--cwd", default="", metavar="DIRECTORY", help="working directory")


def _skills(made: argparse.ArgumentParser) -> None:
    made.add_argument("action", choices=("sign", "verify", "revoke", "restore"))
    made.add_argument(
        "words", metavar="[NAME] [DIRECTORY]", nargs="*",
        help="a skill to revoke or restore; the directory, else that of the policy",
    )  # fmt: skip
    made.add_argument("--key", metavar="FILE", help="the private key, Ed25519 in PEM")
    made.add_argument("--public", metavar="KEY", help="the public one, else that of the policy")
    made.add_argument("--why", default="revoked", metavar="TEXT", help="what users are told")
    made.add_argument("--yes", action="store_true", help="sign what is new without a question")


def _trajectories(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "sessions", metavar="SESSION", nargs="*", help="an id, its beginning, or a title; else all"
    )
    made.add_argument("-o", "--output", metavar="FILE", required=True, help="JSON lines, added to")
    made.add_argument("--form", choices=FORMS, default="chat", help="chat (TRL) or sharegpt")
    made.add_argument("--tokens", type=_count, metavar="N", help="shorten longer ones to about N")
    made.add_argument(
        "--consent", action="store_true", help="all whose words are in the sessions agree"
    )
    made.add_argument("--retry", action="store_true", help="do again what was left out")
    lead = made.add_argument_group("lead conversations")
    lead.add_argument("--prompts", metavar="FILE", help="a prompt a line, or JSON with `prompt`")
    lead.add_argument("--model", metavar="NAME", help="the model to ask")
    lead.add_argument("--tools", metavar="NAMES", help="tools and toolsets, with commas")
    lead.add_argument("--approve", choices=APPROVALS, default="edits", help="what may run")
    lead.add_argument("--parallel", type=_count, default=4, metavar="N", help="at a time (4)")
    lead.add_argument("--max-requests", type=_count, default=30, metavar="N", help="each (30)")
    lead.add_argument("--cwd", metavar="DIRECTORY", help="for all; else an empty one for each")


def _store(made: argparse.ArgumentParser) -> None:
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    about = "make the tables on a server, as their owner"
    init = _command(commands, "init", about, "store:init")
    init.add_argument("--sql", action="store_true", help="print what would be run instead")
    check = _command(commands, "check", "see whether the server can be used", "store:check")
    for each in (init, check):
        each.add_argument(
            "url", metavar="URL", nargs="?", help="postgresql://USER@HOST/DATABASE, else as set"
        )
    about = "copy sessions between stores; nothing is deleted"
    moving = _command(commands, "move", about, "store:move_command")
    for name, metavar in (("source", "FROM"), ("target", "TO")):
        moving.add_argument(name, metavar=metavar, help="home, FILE.db or postgresql://…")


def _what(text: str) -> str:
    """Return what is to be run; raise `UsageProblem` for a notebook that is not there."""
    if text.endswith(".ipynb") and "\n" not in text and not os.access(text, os.F_OK):
        raise UsageProblem(f"there is no notebook {text}")
    return text


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


_count.__name__, _seconds.__name__ = "number above 0", "number of seconds above 0"
