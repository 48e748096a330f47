"""The one decision point: a call runs, asks first, or is refused.

The mode says how much trust there is; the command policy has a say on every shell command and the
last word on destruction, in every mode. What the user answered with "always" is remembered as a
shape, the narrowest description that makes sense: the very same command, the very same file, or
running Python at all. Once a turn has read text that may carry somebody else's instructions, what
could carry secrets out or plant something for later asks, whatever the mode and the answers before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_nb.core.text import head_tail
from hermes_nb.core.tools import Risk, Tool
from hermes_nb.safety.policy import assess
from hermes_nb.safety.visible import visible

Mode = Literal["ask", "edits", "all", "never"]
Verdict = Literal["allow", "ask", "deny"]

_FREE: dict[Mode, frozenset[Risk]] = {
    "ask": frozenset({Risk.READ, Risk.REMEMBER}),
    "edits": frozenset({Risk.READ, Risk.REMEMBER, Risk.WRITE}),
    "all": frozenset(Risk),
    "never": frozenset({Risk.READ}),
}
_WHY = {
    Risk.READ: "it reads",
    Risk.REMEMBER: "it changes what Hermes remembers",
    Risk.WRITE: "it changes files",
    Risk.EXECUTE: "it runs code",
    Risk.NETWORK: "it uses the network",
}
_NETWORK = re.compile(
    r"https?://|ftp://|\b(?:curl|wget|nc|ncat|netcat|socat|telnet|ssh|scp|sftp|rsync|ftp|dig|nslookup"
    r"|host|ping|aria2c?|httpie|xh|sendmail|mail|gh|aws|gsutil|gcloud|az|rclone|pip3?|uv|conda|npm|npx"
    r"|docker|requests|httpx|aiohttp|urllib\d?|socket|smtplib|ftplib|paramiko|boto3?|websockets?"
    r"|urlopen|urlretrieve)\b|\bgit\b.*\b(?:push|fetch|pull|clone|remote)\b|/dev/tcp/"
)
"""What reaches the network by name. Code can always hide it: this is a courtesy, no boundary."""
_CONTENT_SHOWN = 4_000
"""Characters shown of a file's new content. Commands and code are always shown whole."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a call. `shown` is what would run, `shape` what "always" would remember."""

    verdict: Verdict
    why: str
    shown: str
    shape: str


@dataclass(slots=True)
class Guard:
    """Decides on calls; `mode` may change between turns, `remembered` holds shapes.

    The set is kept, not copied, so that whoever made it can store it with the notebook. `tainted`
    says what untrusted text the running turn has read, "" for none.
    """

    mode: Mode = "ask"
    remembered: set[str] = field(default_factory=set)
    tainted: str = ""

    def watches(self, tool: Tool) -> bool:
        """Say whether calls of a tool are decided on at all; in no mode does a mere read ask."""
        return tool.risk is not Risk.READ

    def may_ask(self, tool: Tool) -> bool:
        """Say whether a call of this tool could put a question to the user as things are."""
        if self.mode != "never" and (tool.risk_of or (self.tainted and tool.risk in _CARRIES)):
            return True
        return self.mode != "never" and tool.risk not in _FREE[self.mode]

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Decision:
        """Return the verdict on a call whose arguments are valid."""
        verdict, why = self._verdict(tool, arguments)
        shape = shape_of(tool, arguments)
        if verdict == "ask" and shape in self.remembered:
            verdict, why = "allow", "the user allowed it for this notebook"
        if verdict == "allow" and self.tainted and (what := _carries(tool, arguments)):
            verdict, why = "ask", f"{what} after this turn read {self.tainted}"
        return Decision(verdict, visible(why), shown(tool, arguments), shape)

    def remember(self, shape: str) -> None:
        """Let calls of this shape run without asking from now on."""
        self.remembered.add(shape)

    def taint(self, what: str) -> None:
        """Note that the running turn has read `what`, which may hold somebody's instructions."""
        self.tainted = self.tainted or what

    def begin_turn(self) -> None:
        """Forget what the turn before has read."""
        self.tainted = ""

    def _verdict(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[Verdict, str]:
        command = _command(tool, arguments)
        assessment = assess(command) if command is not None else None
        if assessment and assessment.decision == "deny":
            return "deny", f"the policy refuses it in every mode: {assessment.reason}"
        if _risk(tool, arguments) in _FREE[self.mode]:
            return "allow", ""
        if self.mode == "never":
            return "deny", f"{_why(tool)}, and approvals are set to never"
        if assessment:
            return assessment.decision, assessment.reason
        return "ask", _why(tool)


_CARRIES = frozenset({Risk.NETWORK, Risk.REMEMBER, Risk.EXECUTE})
_LASTING = frozenset({"memory", "skills"})
"""Toolsets whose writes are read again in every later session."""


def _risk(tool: Tool, arguments: Mapping[str, Any]) -> Risk:
    return tool.risk if tool.risk_of is None else tool.risk_of(arguments)


def _carries(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return how a call could carry something out or plant something for later, or ""."""
    if tool.toolset in _LASTING and tool.risk is not Risk.READ:
        return _WHY[Risk.REMEMBER]
    if tool.risk in (Risk.NETWORK, Risk.REMEMBER):
        return _WHY[tool.risk]
    if tool.risk is Risk.EXECUTE:
        said = " ".join(value for value in arguments.values() if isinstance(value, str))
        return _WHY[Risk.NETWORK] if _NETWORK.search(said) else ""
    return ""


def _why(tool: Tool) -> str:
    """Return what makes a tool worth a question."""
    if tool.toolset == "notebook" and tool.risk is Risk.WRITE:
        return "it changes the notebook"
    if tool.toolset in _LASTING:
        return _WHY[Risk.REMEMBER]
    return _WHY[tool.risk]


def shape_of(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return the key under which "always" is remembered: as narrow as the next call may be alike.

    A command is remembered to the letter and with its directory; code only as "this tool", since no
    two snippets are the same; a change of files by the files; everything else by the tool.
    """
    command = _command(tool, arguments)
    if command is not None:
        return json.dumps([tool.name, command, arguments.get("workdir") or "."])
    if tool.paths:
        return json.dumps([tool.name, *(str(arguments.get(name, ".")) for name in tool.paths)])
    return tool.name


def shown(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return exactly what would run, with nothing hidden: no ANSI, no right-to-left tricks."""
    command = _command(tool, arguments)
    if command is not None:
        place = arguments.get("workdir")
        where = f"\n(in {visible(str(place))})" if place else ""
        return visible(command, lines=True) + where
    if isinstance(code := arguments.get("code"), str):
        return visible(code, lines=True)
    return "\n".join(
        f"{name}: {visible(str(value))}" if name in tool.paths else _argument(name, value)
        for name, value in arguments.items()
    )


def _command(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return the shell command of a call, if it is one."""
    command = arguments.get("command")
    return command if tool.toolset == "terminal" and isinstance(command, str) else None


def _argument(name: str, value: object) -> str:
    """Return one argument as `name: value`, longer text as a block that is marked like a diff."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = visible(head_tail(text, _CONTENT_SHOWN), lines=True)
    if "\n" not in text:
        return f"{name}: {text}"
    mark = "-" if name == "old" else "+"
    return f"{name}:\n" + "\n".join(f"{mark}{line}" for line in text.split("\n"))
