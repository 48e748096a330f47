"""The one decision point: a call runs, asks first, or is refused, and in which way it runs.

The mode says how much trust there is. A shell command is judged by the grammar in every mode: what
only reads runs as a plan without a shell, what a sandbox can hold runs there read-only, and the
rest asks for exactly the profile that it would run in. What outlives the session (instruction
files, start-up files, hooks) asks in every mode, and so does whatever could carry something out or
plant something while text from outside is in the conversation. What the user answered with "always"
holds for the very same thing with the same content, until the kernel ends.

The guard of a child agent: as strict as its parent's, and with nobody to ask.
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
"""From the least that runs without a question to the most."""

_FREE: dict[Mode, frozenset[Risk]] = {
    "ask": frozenset({Risk.READ, Risk.REMEMBER}),
    "edits": frozenset({Risk.READ, Risk.REMEMBER, Risk.WRITE}),
    "all": frozenset(Risk) - {Risk.LATER},
    "never": frozenset({Risk.READ}),
}
_WHY = {
    Risk.READ: "it reads",
    Risk.REMEMBER: "it changes what Hermes remembers",
    Risk.WRITE: "it changes files",
    Risk.LATER: "what it writes is run or obeyed later",
    Risk.EXECUTE: "it runs code",
    Risk.NETWORK: "it uses the network",
}
_LASTING = frozenset({"memory", "skills"})
"""Toolsets whose writes are read again in every later session."""
_KERNEL = frozenset({"run_python", "run_cell", "run_cells"})
"""Tools whose code can be refused the network while it runs."""
_UNHELD = "it runs code in your kernel, where no sandbox holds it"
_EACH = {
    "edit_cell": "edits of any cell of this notebook",
    "insert_cell": "new cells anywhere in this notebook",
    "delete_cell": "deleting any cell of this notebook",
    "move_cell": "moving any cell of this notebook",
    "run_cell": "running any cell of this notebook, alone",
    "run_cells": "running any cells of this notebook in a row",
}
"""What "always" covers, of tools that are remembered by their name alone."""
_NETWORK = "With text from outside in the conversation, use of the network still asks"
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


@dataclass(frozen=True, slots=True)
class Way:
    """How a command runs: by a plan without a shell, else by a shell within a profile.

    `watched` says that what it changes of what runs later is put back until the user agrees;
    `offline` is for code in the kernel, which is refused the network as far as Python tells of it.
    `closed` is why nobody may allow it the network, "" where the user may.
    """

    profile: SandboxProfile = SandboxProfile.READ
    plan: Plan = ()
    needs: frozenset[Need] = frozenset()
    watched: bool = True
    offline: bool = False
    closed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to a call.

    `shown` is what would run, whole. `shape` is the key under which "always" is remembered, "" for
    a question that no earlier answer settles, and `lasting` what it would cover, in words. `way` is
    how a command runs. `in_every_mode` says that no approval mode spares the question.
    """

    verdict: Verdict
    why: str = ""
    shown: str = ""
    shape: str = ""
    lasting: str = ""
    way: Way | None = None
    in_every_mode: bool = False


@dataclass(slots=True)
class Guard:
    """Decides on calls; `mode` may change between turns, `remembered` maps shapes to ways.

    `required` is the least level of sandbox, "" for any: where there is less, no command runs but
    those that are known to only read. `sandboxed` says whether there is to be one at all.
    """

    mode: Mode = "ask"
    remembered: dict[str, Way | None] = field(default_factory=dict)
    required: str = ""
    sandboxed: bool = True

    asks: ClassVar[bool] = True
    """Whether a question can be put to the user at all."""

    @property
    def policy(self) -> Policy:
        """The administrator's policy as it is now, which may change at any time."""
        return policy()

    @property
    def held(self) -> Mode:
        """The mode, or the highest below it that the administrator allows."""
        settled = self.policy
        below = MODES[: MODES.index(self.mode) + 1]
        if settled.forced("modes"):  # a lower one, which a ceiling or a parent set, stays
            return next((mode for mode in below if not settled.why("modes", mode)), self.mode)
        return next((m for m in reversed(below) if not settled.why("modes", m)), "never")

    def watches(self, tool: Tool) -> bool:
        """Say whether calls of a tool are decided on at all; in no mode does a mere read ask."""
        return tool.risk is not Risk.READ or "tools" in self.policy.families

    def may_ask(self, tool: Tool, arguments: Arguments) -> bool:
        """Say whether a call with valid arguments could put a question to the user as things are.

        A change of files that the mode allows asks only where it is run or obeyed later.
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
        """Return the verdict on a call whose arguments are valid, made after these messages.

        `result` is the text that a write would leave, where that is more than its arguments;
        `content` is what it would run as `look` has found it, by default as it is now.
        """
        settled, content = self.policy, content or look(tool, arguments)
        if why := settled.why("tools", tool.name, tool.toolset):
            return Decision(verdict="deny", why=why, shown=content.shown)
        command, risk = _command(tool, arguments), _risk(tool, arguments, result)
        if command is not None:
            decision = self._command(command, tool, arguments, messages, content)
            way = decision.way or Way()
            reaches = not way.plan and opens_network(way.profile)
        else:
            decision = self._call(tool, arguments, risk, messages, content)
            unheld = risk is Risk.EXECUTE and tool.name not in _KERNEL
            reaches = risk is Risk.NETWORK or (unheld and tool.toolset not in _LASTING)
        closed = settled.why("network")
        if closed and reaches and decision.verdict != "deny":
            return replace(decision, verdict="deny", why=f"it may use the network, and {closed}")
        if not closed or (command is None and tool.name not in _KERNEL):
            return decision
        return replace(decision, way=replace(decision.way or Way(), closed=closed))

    def shape(self, tool: Tool, arguments: Arguments, content: Content) -> str:
        """Return the key under which "always" would be remembered, "" where it may not be."""
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
        """Return the verdict on what is no shell command."""
        shows, mode = content.shown, self.held
        if why := self._why(tool, arguments, messages, risk, mode):
            always = bool(self._why(tool, arguments, messages, risk, "all"))
            why = visible(why)
            return Decision(verdict="ask", why=why, shown=shows, in_every_mode=always)
        free, shape = risk in _FREE[mode], self.shape(tool, arguments, content)
        if mode == "never" and not free:
            why = f"{_told(tool, risk)}, and approvals are set to never"
            return Decision(verdict="deny", why=why, shown=shows)
        if free or self._remembers(shape):
            held = tool.name in _KERNEL and outside(messages)
            way = Way(offline=True) if held else None
            return Decision(verdict="allow", shown=shows, way=way)
        told = lasting(tool, arguments)
        return Decision(
            verdict="ask",
            why=_UNHELD if tool.name in _KERNEL else _told(tool, risk),
            shown=shows,
            shape=shape,
            lasting=told,
        )

    def _remembers(self, shape: str) -> bool:
        return bool(shape) and shape in self.remembered and not self.policy.why("always")

    def remember(self, shape: str, way: object = None) -> None:
        """Let calls of this shape run without asking from now on, in this way; "" is none."""
        if shape:
            self.remembered[shape] = way if isinstance(way, Way) else None

    def _why(
        self,
        tool: Tool,
        arguments: Arguments,
        messages: Sequence[Message],
        risk: Risk,
        mode: Mode,
    ) -> str:
        """Return what makes a call ask whatever the answers before, "" for nothing.

        Only what a memory service recalls depends on the mode: in "all" it may be remembered
        beside, as long as the wording is not the service's.
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
            what = _told(tool, risk) if lasts or risk is Risk.NETWORK else _UNCONFINED
            return f"{what}, and {where} holds text from outside"
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
        """Return the verdict on a shell command, and how it runs."""
        from hermes_nb.safety.policy import CommandPlace, judge  # with the first command

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
                f"this very command in {directory.name or directory}, while the files that it "
                "names stay as they are, until this kernel ends"
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
            why = visible(f"{judged.reason}, and {where} holds text from outside")
            asks = replace(decision, verdict="ask", why=why, shape="", lasting="", way=way)
            return replace(asks, in_every_mode=True)
        if mode == "all" and not lasts:
            return replace(decision, way=way)
        why = visible(judged.reason)
        return replace(decision, verdict="ask", why=why, way=way, in_every_mode=lasts)

    def _refusal(self, judged: Judgement) -> str:
        """Return why a command does not run at all, "" if it may."""
        if judged.decision == "deny":
            return f"the policy refuses it in every mode: {judged.reason}"
        if self.held == "never":
            return f"{_WHY[Risk.EXECUTE]}, and approvals are set to never"
        if judged.decision != "allow" and not level().meets(self.required):
            return (
                f"a sandbox of the level {self.required} is required, and there is {level().name}"
            )
        return ""


def _reaches_out(profile: SandboxProfile) -> bool:
    """Say whether a profile lets a command carry something out of the workspace."""
    return bool(profile & (SandboxProfile.NETWORK | SandboxProfile.HOME | SandboxProfile.OUTSIDE))


def opens_network(profile: SandboxProfile) -> bool:
    """Say whether a profile lets a command use the network."""
    return bool(profile & (SandboxProfile.NETWORK | SandboxProfile.OUTSIDE))


_UNCONFINED = "code in the kernel runs without a sandbox and may use the network"


def profile_for(needs: frozenset[Need]) -> SandboxProfile:
    """Return the least profile that covers what a command wants, on this machine."""
    profile = SandboxProfile.WORKSPACE
    for need in needs:
        profile |= _PROFILES[need]
    found = level().name
    if SandboxProfile.OUTSIDE in profile or found == "none":
        return SandboxProfile.OUTSIDE
    if found == "landlock" and SandboxProfile.NETWORK in profile:
        return SandboxProfile.OUTSIDE  # Landlock cannot let a command reach the network and no more
    return profile


def _risk(tool: Tool, arguments: Arguments, result: str | None = None) -> Risk:
    """Return the risk of one call: a write that is run or obeyed later is one of its own."""
    risk = tool.risk if tool.risk_of is None else tool.risk_of(arguments)
    return Risk.LATER if risk is Risk.WRITE and _later(tool, arguments, result) else risk


def _later(tool: Tool, arguments: Arguments, result: str | None = None) -> str:
    """Return why what a call writes would be run or obeyed later, "" if it would not."""
    texts = [value for value in arguments.values() if isinstance(value, str)]
    if tool.toolset == "notebook":
        return _AGENT if any(map(starts_agent, texts if result is None else [result])) else ""
    # As the strings of a notebook's JSON read: no escapes of letters, lists of lines joined.
    plain = (re.sub(r"\\u00([0-9a-fA-F]{2})", lambda u: chr(int(u[1], 16)), text) for text in texts)
    texts = [re.sub(r'"\s{0,99},\s{0,99}"', "", text) for text in plain]
    root = tool.root or Path()
    for name in tool.paths:
        given = arguments.get(name)
        for path in given if isinstance(given, list | tuple) else [given]:
            if not isinstance(path, str):
                continue
            if why := why_later(root / path, root):
                return f"{path} is {why}, which is run or obeyed later"
            if path.endswith(".ipynb") and any(map(starts_agent, texts)):
                return f"{path} would start an agent when it is run"
    return ""


def _told(tool: Tool, risk: Risk) -> str:
    """Return what makes a tool worth a question."""
    if tool.toolset == "notebook" and risk is Risk.WRITE:
        return "it changes the notebook"
    if tool.toolset == "mcp":
        return "it is sent to an MCP server, a program of somebody else's"
    if tool.toolset in _LASTING:
        return _WHY[Risk.REMEMBER]
    return _WHY[risk]


def shape_of(tool: Tool, arguments: Arguments, content: Content) -> str:
    """Return the key under which "always" is remembered: as narrow as the next call may be alike.

    A command is remembered to the letter, with its directory and the files that it names as they
    were in `content`; what runs a file, by that file's content; code only as "this tool", since no
    two snippets are the same; a change of files by the files; everything else by the tool.
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
    """Return in words what "always" covers."""
    named = ", ".join(str(arguments.get(name, ".")) for name in tool.paths)
    if tool.paths and tool.risk is Risk.EXECUTE:
        what = f"{tool.name} of {named}, as it is now"
    elif tool.paths:
        what = f"any {tool.name} of {named}"
    elif tool.scope is not None:
        what = f"any {tool.scope(arguments)}"
    elif "code" in arguments:
        what = f"any Python code that Hermes runs outside of cells ({tool.name})"
    else:
        what = _EACH.get(tool.name, f"any {tool.name}")
    told = f"{what}, until this kernel ends"
    return f"{told}. {_NETWORK}" if tool.name in _KERNEL else told


def look(tool: Tool, arguments: Arguments) -> Content:
    """Return what a call would run or change as it is now, with the files that it names.

    It is shown exactly and whole, with nothing hidden: no ANSI, no tricks of direction. A script
    that a command names is shown behind it, as it was when it was digested.
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
    """Yield the paths that a call names."""
    for name in tool.paths:
        given = arguments.get(name)
        for path in given if isinstance(given, list | tuple) else [given]:
            if isinstance(path, str) and "\0" not in path:
                yield path


def _command(tool: Tool, arguments: Arguments) -> str | None:
    """Return the shell command of a call, if it is one."""
    command = arguments.get("command")
    return command if tool.toolset == "terminal" and isinstance(command, str) else None


def _argument(name: str, value: object) -> str:
    """Return one argument as `name: value`, longer text as a block that is marked like a diff."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = visible(text, lines=True)
    if "\n" not in text:
        return f"{name}: {text}"
    mark = "-" if name == "old" else "+"
    return f"{name}:\n" + "\n".join(f"{mark}{line}" for line in text.split("\n"))


REPORT_IT = "a child agent cannot ask. Say in the report what should be run"


@dataclass(slots=True)
class ChildGuard(Guard):
    """What its parent would have to ask about is refused; what the user allowed before is not."""

    parent: Guard = field(default_factory=Guard)

    asks: ClassVar[bool] = False

    def decide(
        self,
        tool: Tool,
        arguments: Arguments,
        *,
        messages: Sequence[Message] = (),
        result: str | None = None,
        content: Content | None = None,
    ) -> Decision:
        """Return the verdict on a call, which is never to ask."""
        decision = self.parent.decide(
            tool, arguments, messages=messages, result=result, content=content
        )
        if decision.verdict != "ask":
            return decision
        return replace(decision, verdict="deny", why=f"{decision.why}, and {REPORT_IT}")
