"""Decide whether each tool call runs, needs approval or is denied, and how it runs.

The approval mode sets the level of trust. Shell commands are checked by the command grammar in
every mode. A command that is known to be read-only runs without a shell, as a *plan*: a list of
programs with their final arguments (`policy.Pipeline`). Other commands run in a read-only sandbox
if that is enough. The rest need approval for the sandbox profile that they would use.

Two kinds of call need approval in every mode: writes that outlive the session (instruction files,
startup files, hooks), and calls that could send data out or plant something while the conversation
contains untrusted content. An "always" answer applies to the same call with the same content until
the kernel ends.

`ChildGuard` is the guard of a child agent. It is as strict as its parent's guard and denies
everything that would need approval.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Arguments, Content, Risk, Tool
from hermes_nb.safety.administrator import Policy, policy
from hermes_nb.safety.later import starts_agent
from hermes_nb.safety.permissions import Need, SandboxProfile
from hermes_nb.safety.protected import why_later
from hermes_nb.safety.provenance import outside, taken
from hermes_nb.safety.sandbox import level

if TYPE_CHECKING:
    from hermes_nb.safety.policy import Plan
    from hermes_nb.safety.policy import Verdict as Judgement

Mode = Literal["ask", "edits", "all", "never"]
Verdict = Literal["allow", "ask", "deny"]
MODES: tuple[Mode, ...] = ("never", "ask", "edits", "all")
"""The approval modes, from the strictest to the most permissive."""

_FREE: dict[Mode, frozenset[Risk]] = {
    "ask": frozenset({Risk.READ, Risk.REMEMBER}),
    "edits": frozenset({Risk.READ, Risk.REMEMBER, Risk.WRITE}),
    "all": frozenset(Risk) - {Risk.LATER},
    "never": frozenset({Risk.READ}),
}
"""Risks that need no approval, by mode."""
_WHY = {
    Risk.READ: "it reads",
    Risk.REMEMBER: "it changes what Hermes remembers",
    Risk.WRITE: "it changes files",
    Risk.LATER: "it writes something that is run or obeyed later",
    Risk.EXECUTE: "it runs code",
    Risk.NETWORK: "it uses the network",
}
"""The reason why a call needs approval, by risk."""
_LASTING = frozenset({"memory", "skills"})
"""Toolsets with writes that every later session reads."""
COPY = "try_python"
"""The tool that runs code on a copy of the kernel's variables, in a sandbox if there is one."""
_KERNEL = frozenset({"run_python", "run_cell", "run_cells", COPY})
"""Tools that run code in the kernel, which can be denied network access while it runs."""
_UNHELD = "it runs in your kernel, without a sandbox"
"""The reason code in the kernel needs approval."""
_UNHELD_COPY = "it runs on a copy of your variables, but without a sandbox"
"""The reason code for a copy needs approval where no sandbox confines it."""
_EACH = {
    "edit_cell": "edits of any cell of this notebook",
    "insert_cell": "new cells anywhere in this notebook",
    "delete_cell": "deleting any cell of this notebook",
    "move_cell": "moving any cell of this notebook",
    "run_python": "any Python code that Hermes writes, in cells of its own or outside of cells",
    "run_cell": "running any cell of this notebook, alone",
    "run_cells": "running any cells of this notebook in a row",
}
"""What "always" covers for tools that are remembered only by name."""
_NETWORK = "While the conversation contains untrusted content, network access still needs approval"
_AGENT = "the cell would start an agent when it is run"
_PROFILES = {
    Need.WRITE: SandboxProfile.WORKSPACE,
    Need.GIT: SandboxProfile.GIT,
    Need.ENVIRONMENT: SandboxProfile.ENVIRONMENT,
    Need.NETWORK: SandboxProfile.WORKSPACE | SandboxProfile.NETWORK,
    Need.HOME: SandboxProfile.WORKSPACE | SandboxProfile.HOME,
    Need.CREDENTIALS: SandboxProfile.OUTSIDE,
    Need.LATER: SandboxProfile.OUTSIDE,
}
"""The sandbox profile that covers each need."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a command runs: as a plan without a shell, or in a shell with a sandbox profile."""

    profile: SandboxProfile = SandboxProfile.READ
    """Permissions of the command."""
    plan: Plan = ()
    """The programs to run without a shell. If empty, run the command in a shell."""
    needs: frozenset[Need] = frozenset()
    """What the command needs beyond reading."""
    watched: bool = True
    """Revert the command's changes to files that run later until the user approves them."""
    offline: bool = False
    """Deny code in the kernel any network access that Python's audit events reveal."""
    copied: bool = False
    """Whether code runs on a copy of the variables, in another process."""
    closed: str = ""
    """The reason the user may not allow network access. Empty if the user may."""
    runs: str = ""
    """The code that the user approved to run once, after the call has written it into a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about a call."""

    verdict: Verdict
    """Run the call, ask for approval, or deny it."""
    why: str = ""
    """The reason the call needs approval or is denied. Empty for "allow"."""
    shown: str = ""
    """The complete code, command or arguments for display."""
    shape: str = ""
    """The key under which "always" is remembered. Empty if the answer cannot be remembered."""
    lasting: str = ""
    """A description of what "always" would cover."""
    way: Way | None = None
    """How a command or code in the kernel runs. None means no special handling."""
    in_every_mode: bool = False
    """Whether the call needs approval in every mode."""


@dataclass(slots=True)
class Guard:
    """Decides on tool calls."""

    mode: Mode = "ask"
    """The approval mode. It may change between turns."""
    remembered: dict[str, Way | None] = field(default_factory=dict)
    """How calls approved with "always" run, by shape."""
    required: str = ""
    """The lowest acceptable sandbox level, or "" for any.

    On a machine with a lower level, only commands known to be read-only can run.
    """
    sandboxed: bool = True
    """Whether commands run in a sandbox if the machine has one."""

    asks: ClassVar[bool] = True
    """Whether the user can be asked for approval."""

    @property
    def policy(self) -> Policy:
        """The administrator's current policy, read again on each access."""
        return policy()

    @property
    def held(self) -> Mode:
        """The effective mode: `mode`, or the highest one below it that the administrator allows."""
        settled = self.policy
        below = MODES[: MODES.index(self.mode) + 1]
        if settled.forced("modes"):  # a ceiling or parent may have set a lower mode, which is kept
            return next((mode for mode in below if not settled.why("modes", mode)), self.mode)
        return next((m for m in reversed(below) if not settled.why("modes", m)), "never")

    def watches(self, tool: Tool) -> bool:
        """Return whether the guard checks calls to a tool.

        Read-only tools are checked only if the administrator's policy restricts tools.
        """
        return tool.risk is not Risk.READ or "tools" in self.policy.families

    def may_ask(self, tool: Tool, arguments: Arguments) -> bool:
        """Return whether a call with valid arguments could need the user's approval.

        A file change that the mode allows needs approval only if the file will be executed or read
        as configuration or instructions later.
        """
        if not self.asks or tool.risk is Risk.READ or self.held == "never":
            return False
        writes = bool(tool.paths) and tool.toolset not in _LASTING
        free = writes and Risk.WRITE in _FREE[self.held]
        return not (free and _risk(tool, arguments) is Risk.WRITE)

    def decide(
        self,
        tool: Tool,
        arguments: Arguments,
        *,
        messages: Sequence[Message] = (),
        result: str | None = None,
        content: Content | None = None,
    ) -> Decision:
        """Return the decision about a call.

        Args:
            tool: The tool to call.
            arguments: The validated arguments.
            messages: The conversation before the call.
            result: The complete text after a write, if the arguments contain only part of it.
            content: The result of `content_of` for this call. Default: call it now.
        """
        settled, content = self.policy, content or content_of(tool, arguments)
        names = [tool.name, *(["run_python"] if tool.name == COPY else [])]
        if why := next(filter(None, (settled.why("tools", n, tool.toolset) for n in names)), ""):
            return Decision(verdict="deny", why=why, shown=content.shown)
        command, risk = _command(tool, arguments), _risk(tool, arguments, result)
        if command is not None:
            decision = self._command(command, tool, arguments, messages, content)
            way = decision.way or Way()
            reaches = not way.plan and opens_network(way.profile)
        else:
            decide = self._copy if tool.name == COPY else self._call
            decision = decide(tool, arguments, risk, messages, content)
            unheld = risk is Risk.EXECUTE and tool.name not in _KERNEL
            reaches = risk is Risk.NETWORK or (unheld and tool.toolset not in _LASTING)
        closed = settled.why("network")
        if closed and reaches and decision.verdict != "deny":
            return replace(decision, verdict="deny", why=f"it may use the network, and {closed}")
        if not closed or (command is None and tool.name not in _KERNEL):
            return decision
        way = replace(decision.way or Way(), closed=closed)
        return replace(decision, way=way if command is not None else replace(way, offline=True))

    def shape(self, tool: Tool, arguments: Arguments, content: Content) -> str:
        """Return the key that stores an "always" answer for a call, or "" if none may be stored."""
        remembers = not self.policy.why("always") and content.whole
        return shape_of(tool, arguments, content) if remembers else ""

    def _call(
        self,
        tool: Tool,
        arguments: Arguments,
        risk: Risk,
        messages: Sequence[Message],
        content: Content,
    ) -> Decision:
        """Return the decision about a call that is not a shell command."""
        shows, mode = content.shown, self.held
        if why := self._reason_to_ask(tool, arguments, messages, risk, mode):
            always = bool(self._reason_to_ask(tool, arguments, messages, risk, "all"))
            why = visible(why)
            return Decision(verdict="ask", why=why, shown=shows, in_every_mode=always)
        free, shape = risk in _FREE[mode], self.shape(tool, arguments, content)
        if mode == "never" and not free:
            why = f"{_approval_reason(tool, risk)}, and approvals are set to never"
            return Decision(verdict="deny", why=why, shown=shows)
        if free or self._remembers(shape):
            held = tool.name in _KERNEL and outside(messages)
            way = Way(offline=True) if held else None
            return Decision(verdict="allow", shown=shows, way=way)
        told = lasting(tool, arguments)
        return Decision(
            verdict="ask",
            why=_UNHELD if tool.name in _KERNEL else _approval_reason(tool, risk),
            shown=shows,
            shape=shape,
            lasting=told,
        )

    def _copy(
        self,
        tool: Tool,
        arguments: Arguments,
        risk: Risk,
        messages: Sequence[Message],
        content: Content,
    ) -> Decision:
        """Return the decision about code for a copy, which can change nothing in a sandbox."""
        found, free = level(), self.held != "never" and self.sandboxed
        if free and found.name != "none" and found.meets(self.required):
            return Decision(verdict="allow", shown=content.shown, way=Way(copied=True))
        decision = self._call(tool, arguments, risk, messages, content)
        why = _UNHELD_COPY if decision.why == _UNHELD else decision.why
        way = replace(decision.way or Way(), profile=SandboxProfile.OUTSIDE, copied=True)
        return replace(decision, why=why, way=way)

    def _remembers(self, shape: str) -> bool:
        return bool(shape) and shape in self.remembered and not self.policy.why("always")

    def remember(self, shape: str, way: object = None) -> None:
        """Run calls with this shape (see `shape_of`) without approval from now on.

        An empty shape is ignored. For a command, `way` is how the user allowed it to run.
        """
        if shape:
            self.remembered[shape] = way if isinstance(way, Way) else None

    def _reason_to_ask(
        self,
        tool: Tool,
        arguments: Arguments,
        messages: Sequence[Message],
        risk: Risk,
        mode: Mode,
    ) -> str:
        """Return the reason a call needs approval despite earlier answers, or "" if it does not.

        The mode matters only for text recalled by a memory service: in mode "all", the agent may
        write to memory while such text is in the conversation, unless it copies the wording.
        """
        if mode == "never" or risk is Risk.READ:
            return ""
        if risk is Risk.LATER:
            return _AGENT if tool.toolset == "notebook" else _later(tool, arguments) or _WHY[risk]
        lasts = risk is Risk.REMEMBER or tool.toolset in _LASTING
        sends = tool.name not in _KERNEL and risk in (Risk.EXECUTE, Risk.NETWORK)
        reaches = lasts or (sends and not tool.stays)
        spared = mode == "all" and tool.toolset == "memory"
        if reaches and (where := outside(messages, recalled=not spared)):
            what = _approval_reason(tool, risk) if lasts or risk is Risk.NETWORK else _UNCONFINED
            return f"{what}, and {where} contains untrusted content"
        texts = (value for value in arguments.values() if isinstance(value, str))
        wording = "\n".join(texts) if tool.wording is None else tool.wording(arguments)
        if lasts and (passage := taken(wording, messages)):
            return f"its wording is not yours or the agent's own: “{passage}”"
        return ""

    def _command(
        self,
        command: str,
        tool: Tool,
        arguments: Arguments,
        messages: Sequence[Message],
        content: Content,
    ) -> Decision:
        """Return the decision about a shell command, including how it runs."""
        from hermes_nb.safety.policy import CommandPlace, judge  # imported on the first command

        root = tool.root or Path()
        directory = root / str(arguments.get("workdir") or ".")
        confines = self.sandboxed and level().name != "none"
        place = CommandPlace(workspace=root, directory=directory, home=Path.home(), hidden=confines)
        judged = judge(command, place)
        decision = Decision(
            verdict="allow",
            shown=content.shown,
            shape=self.shape(tool, arguments, content),
            lasting=(
                f"exactly this command in {directory.name or directory}, as long as the files "
                "that it names do not change, until this kernel ends"
            ),
            way=Way(
                SandboxProfile.READ if confines else SandboxProfile.OUTSIDE,
                judged.plan,
                judged.needs,
            ),
        )
        if refused := self._refusal(judged):
            return replace(decision, verdict="deny", why=visible(refused))
        where, lasts = outside(messages), Need.LATER in judged.needs
        mode = self.held
        if mode == "all" and not (where or lasts or self.policy.why("network")):
            return replace(decision, way=Way(SandboxProfile.OUTSIDE, needs=judged.needs))
        known = self.remembered.get(decision.shape) if self._remembers(decision.shape) else None
        if known is not None and not (where and _reaches_out(known.profile)):
            return replace(decision, way=known)
        if judged.decision in ("allow", "confine"):
            return decision
        profile = profile_for(judged.needs) if confines else SandboxProfile.OUTSIDE
        way = Way(profile, needs=judged.needs, watched=Need.CREDENTIALS not in judged.needs)
        if where and _reaches_out(profile):
            why = visible(f"{judged.reason}, and {where} contains untrusted content")
            asks = replace(decision, verdict="ask", why=why, shape="", lasting="", way=way)
            return replace(asks, in_every_mode=True)
        if mode == "all" and not lasts:
            return replace(decision, way=way)
        why = visible(judged.reason)
        return replace(decision, verdict="ask", why=why, way=way, in_every_mode=lasts)

    def _refusal(self, judged: Judgement) -> str:
        """Return the reason a command must never run, or "" if it may."""
        if judged.decision == "deny":
            return f"the policy refuses it in every mode: {judged.reason}"
        if self.held == "never":
            return f"{_WHY[Risk.EXECUTE]}, and approvals are set to never"
        if judged.decision != "allow" and not level().meets(self.required):
            return (
                f"a sandbox of level {self.required} is required, but only {level().name} is "
                "available"
            )
        return ""


def _reaches_out(profile: SandboxProfile) -> bool:
    """Return whether a profile lets a command send data out of the workspace."""
    return bool(profile & (SandboxProfile.NETWORK | SandboxProfile.HOME | SandboxProfile.OUTSIDE))


def opens_network(profile: SandboxProfile) -> bool:
    """Return whether a profile lets a command use the network."""
    return bool(profile & (SandboxProfile.NETWORK | SandboxProfile.OUTSIDE))


_UNCONFINED = "code in the kernel runs without a sandbox and may use the network"


def profile_for(needs: frozenset[Need]) -> SandboxProfile:
    """Return the narrowest profile on this machine that covers a command's needs."""
    profile = SandboxProfile.WORKSPACE
    for need in needs:
        profile |= _PROFILES[need]
    found = level().name
    if SandboxProfile.OUTSIDE in profile or found == "none":
        return SandboxProfile.OUTSIDE
    if found == "landlock" and SandboxProfile.NETWORK in profile:
        return SandboxProfile.OUTSIDE  # Landlock cannot allow only the network
    return profile


def _risk(tool: Tool, arguments: Arguments, result: str | None = None) -> Risk:
    """Return the risk of a call: `Risk.LATER` for a write if `_later` returns a reason."""
    risk = tool.risk if tool.risk_of is None else tool.risk_of(arguments)
    return Risk.LATER if risk is Risk.WRITE and _later(tool, arguments, result) else risk


def _later(tool: Tool, arguments: Arguments, result: str | None = None) -> str:
    """Return the reason content would later be executed or read as configuration, or "".

    Instructions for an agent also count.
    """
    texts = [value for value in arguments.values() if isinstance(value, str)]
    if tool.toolset == "notebook":
        return _AGENT if any(map(starts_agent, texts if result is None else [result])) else ""
    # Roughly decode a notebook's JSON strings: unescape letters, join lists of lines.
    plain = (re.sub(r"\\u00([0-9a-fA-F]{2})", lambda u: chr(int(u[1], 16)), text) for text in texts)
    texts = [re.sub(r'"\s{0,99},\s{0,99}"', "", text) for text in plain]
    root = tool.root or Path()
    for name in tool.paths:
        given = arguments.get(name)
        for path in given if isinstance(given, list | tuple) else [given]:
            if not isinstance(path, str):
                continue
            if why := why_later(root / path, root):
                return f"{path} ({why}) is run or obeyed later"
            if path.endswith(".ipynb") and any(map(starts_agent, texts)):
                return f"{path} would start an agent when it is run"
    return ""


def _approval_reason(tool: Tool, risk: Risk) -> str:
    """Return the reason a tool's calls need approval."""
    if tool.toolset == "notebook" and risk is Risk.WRITE:
        return "it changes the notebook"
    if tool.toolset == "mcp":
        return "it is sent to an MCP server, a third-party program"
    if tool.toolset in _LASTING:
        return _WHY[Risk.REMEMBER]
    return _WHY[risk]


def shape_of(tool: Tool, arguments: Arguments, content: Content) -> str:
    """Return the key that stores an "always" answer, as specific as a repeated call allows.

    For a command, the key consists of its exact text, its directory and the digests in `content` of
    the files that it refers to. For a tool that runs a file, it includes the file's digest; for a
    tool that changes files, their paths. A code snippet hardly ever recurs, so its key is just the
    name of the tool, as for all other calls.
    """
    command = _command(tool, arguments)
    if command is not None:
        workdir = str(arguments.get("workdir") or ".")
        return json.dumps([tool.name, command, workdir, content.digests])
    if tool.paths:
        paths = [str(arguments.get(name, ".")) for name in tool.paths]
        runs = content.digests if tool.risk is Risk.EXECUTE else {}
        return json.dumps([tool.name, str(tool.root), *paths, runs])
    return tool.name if tool.scope is None else tool.scope(arguments)


def lasting(tool: Tool, arguments: Arguments) -> str:
    """Return a description of what "always" covers."""
    named = ", ".join(str(arguments.get(name, ".")) for name in tool.paths)
    if tool.paths and tool.risk is Risk.EXECUTE:
        what = f"{tool.name} of {named}, as it is now"
    elif tool.paths:
        what = f"any {tool.name} of {named}"
    else:
        scope = tool.name if tool.scope is None else tool.scope(arguments)
        what = _EACH.get(scope, f"any {scope}")
    text = f"{what}, until this kernel ends"
    return f"{text}. {_NETWORK}" if tool.name in _KERNEL else text


def content_of(tool: Tool, arguments: Arguments) -> Content:
    """Return a call's complete text for display, and digests of the files in it.

    The text has no ANSI codes or bidirectional overrides that could hide something. It is followed
    by the scripts that a command runs, with the same content that was digested.
    """
    from hermes_nb.safety.named_files import files_of, read_files

    command, root = _command(tool, arguments), tool.root or Path()
    if command is not None:
        place = arguments.get("workdir")
        where = f"\n(in {visible(str(place))})" if place else ""
        files = files_of(command, root / str(place or "."))
        scripts = (
            f"\n\n--- {visible(name)} ---\n{visible(text, lines=True)}"
            for name, text in files.scripts
        )
        told = visible(command, lines=True) + where + "".join(scripts)
        return Content(shown=told, digests=files.digests, whole=files.whole)
    files = read_files(root / path for path in _paths(tool, arguments))
    if isinstance(code := arguments.get("code"), str) and tool.toolset != "mcp":
        told = visible(code, lines=True)
    else:
        told = "\n".join(
            f"{name}: {visible(str(value))}" if name in tool.paths else _argument(name, value)
            for name, value in arguments.items()
        )
    return Content(shown=told, digests=files.digests, whole=files.whole)


def _paths(tool: Tool, arguments: Arguments) -> Iterator[str]:
    """Yield the paths in a call's arguments."""
    for name in tool.paths:
        given = arguments.get(name)
        for path in given if isinstance(given, list | tuple) else [given]:
            if isinstance(path, str) and "\0" not in path:
                yield path


def _command(tool: Tool, arguments: Arguments) -> str | None:
    """Return a call's shell command, or None for other calls."""
    command = arguments.get("command")
    return command if tool.toolset == "terminal" and isinstance(command, str) else None


def _argument(name: str, value: object) -> str:
    """Return an argument as `name: value`, or a multi-line value as a block with diff marks."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = visible(text, lines=True)
    if "\n" not in text:
        return f"{name}: {text}"
    mark = "-" if name == "old" else "+"
    return f"{name}:\n" + "\n".join(f"{mark}{line}" for line in text.split("\n"))


REPORT_IT = "a child agent cannot ask. Say in the report what should be run"


@dataclass(slots=True)
class ChildGuard(Guard):
    """The guard of a child agent: denies every call for which its parent would have to ask.

    Earlier approvals by the user still apply.
    """

    parent: Guard = field(default_factory=Guard)
    """The parent agent's guard, which makes the decisions."""

    asks: ClassVar[bool] = False
    """There is no user to ask."""

    def decide(
        self,
        tool: Tool,
        arguments: Arguments,
        *,
        messages: Sequence[Message] = (),
        result: str | None = None,
        content: Content | None = None,
    ) -> Decision:
        """Return the parent's decision about a call, but deny it if the parent would ask."""
        decision = self.parent.decide(
            tool, arguments, messages=messages, result=result, content=content
        )
        if decision.verdict != "ask":
            return decision
        return replace(decision, verdict="deny", why=f"{decision.why}, and {REPORT_IT}")
