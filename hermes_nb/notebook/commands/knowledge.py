"""`%hermes memory`, `skills` and `trust`: stored knowledge, pending proposals, and approvals."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

from hermes_nb.agent.approvals import Approvals, DecisionResult
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.proposals import Kind, Proposal, told_of
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import capitalised, head_tail, number_of, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.memory.curated import FILES
from hermes_nb.memory.history import BY_HAND, MemoryRecord
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.commands.mcp import NEXT, use_servers
from hermes_nb.notebook.display.tables import ago, grid
from hermes_nb.notebook.execute.network import CONVERSATION, hosts
from hermes_nb.notebook.execute.network import trust as trust_kernel
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import can_ask
from hermes_nb.prompt.context_files import ContextFile
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hermes_nb.safety.programs import GIT_ENVIRONMENT
from hermes_nb.safety.redact import redact
from hermes_nb.skills.document import SkillError
from hermes_nb.skills.sources import SkillSource, difference, source_of, taken
from hermes_nb.tools.mcp_tools import PROJECT
from hermes_nb.tools.process import Program, run_pipeline

_MARKS = {"clean": "", "suspicious": "⚠", "dangerous": "left out"}
"""A skill's mark, by its scan level."""
_NO_SOURCE = "No skill sources yet. `%hermes skills add` with a path or a URL adds one."
_GIT = {
    "GIT_ALLOW_PROTOCOL": "https:file",
    "GIT_ASKPASS": "true",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}
"""Git environment without user settings or protocols that run programs."""
FETCH_SECONDS = 120.0
"""Timeout for cloning a repository."""
MOST_SAID = 10_000
"""Maximum bytes of git output to store."""
LISTED = 1_500
"""Maximum characters of each proposal in the list."""
WHOLE = 100_000
"""Maximum characters of a single proposal or diff."""


def pending(approvals: Approvals, kind: Kind, words: str) -> str:
    """List the pending memory or skill proposals, or show one in full."""
    waiting = approvals.waiting(kind)
    if words:
        wanted = _number(words, kind)
        waiting = [each for each in waiting if each.number == wanted]
        if not waiting:
            message = f"there is no pending change {wanted}; `%hermes {kind} pending` lists them"
            raise ConfigError(message)
    if not waiting:
        return "Nothing is waiting for your approval."
    limit = WHOLE if words else LISTED
    blocks = [_block(each, approvals.shown(each), limit) for each in waiting]
    ways = f"`%hermes {kind} approve N`, `%hermes {kind} reject N`, or `all` for N"
    if kind == "memory":
        ways += ", and `%hermes memory approve N TEXT` with your own wording"
    return "\n\n".join([*blocks, ways])


def approve(approvals: Approvals, kind: Kind, words: str) -> str:
    """Save pending proposals by number, all of a kind, or one with edited text."""
    first, _, rest = words.strip().partition(" ")
    text = None if all(map(str.isdecimal, rest.replace(",", " ").split())) else rest.strip()
    one = "" if text is None else str(_number(first, kind))
    numbers = _numbers(approvals, kind, one or words)
    outcomes = [approvals.approve(number, text=text) for number in numbers]
    saved = [_decision_text(outcome) for outcome in outcomes if outcome.done]
    left = [f"{o.proposal.number} is still pending: {o.message}" for o in outcomes if not o.done]
    if left and not saved:
        raise ConfigError("; ".join(left))
    if saved:
        undo = " NAME" if kind == "skills" else ""
        saved.append(f"`%hermes {kind} undo{undo}` undoes the last one.")
    return "\n\n".join([*saved, *map(escape, left)])


def reject(approvals: Approvals, kind: Kind, words: str) -> str:
    """Discard pending proposals by number, or all of a kind."""
    numbers = _numbers(approvals, kind, words)
    return "\n\n".join(_decision_text(approvals.reject(number)) for number in numbers)


def _block(proposal: Proposal, shown: str, limit: int) -> str:
    origin = proposal.origin
    notebook = f" in {Path(origin.notebook).name}" if origin.notebook else ""
    came = f"a {origin.source}{notebook}, {ago(proposal.at)}"
    lines = [f"**{proposal.number}** {escape(proposal.gist)} · {escape(came)}"]
    if proposal.begun:
        lines.append("The process that was saving it was killed: it may already be saved.")
    if proposal.problem:
        lines.append(f"It could not be saved: {escape(redact(visible(proposal.problem)))}")
    text = head_tail(redact(visible(shown, lines=True)), limit)
    return "\n\n".join([*lines, code_block(text, "diff")])


def _decision_text(outcome: DecisionResult) -> str:
    return f"{escape(capitalised(outcome.message))}."


def _numbers(approvals: Approvals, kind: Kind, words: str) -> list[int]:
    """Parse proposal numbers, or "all" for all pending ones; raise `ConfigError` if invalid.

    A number that belongs to the other kind is also an error, because the user should see a proposal
    in its own list before making a decision.
    """
    if words.strip().casefold() == "all":
        found = [each.number for each in approvals.waiting(kind)]
        if not found:
            raise ConfigError("nothing is waiting for your approval")
        return found
    found = list(dict.fromkeys(_number(word, kind) for word in words.replace(",", " ").split()))
    for each in approvals.waiting():
        if each.number in found and each.kind != kind:
            raise ConfigError(
                f"{each.number} is a {each.kind} change; see `%hermes {each.kind} pending`"
            )
    return found or [_number("", kind)]


def _number(word: str, kind: Kind) -> int:
    if word.isdecimal() and len(word) <= DIGITS:
        return int(word)
    raise ConfigError(f"give the number of a change; `%hermes {kind} pending` lists them")


DECIDING = {"pending": pending, "approve": approve, "reject": reject}
"""Actions on pending proposals."""
DIGITS = 9
"""Maximum digits in a proposal's number."""
SHOWN_RECORDS = 5
"""Number of the latest memory changes to list."""
CELLS = 20
"""Width in characters of the bar that shows a memory's size."""


def memory(agent: KernelAgent, given: Namespace) -> str:
    """Show or change the curated memory."""
    known, target, text = agent.knowledge, given.which or "memory", given.text
    if given.action in DECIDING:
        return DECIDING[given.action](agent.runtime.approvals, "memory", given.rest)
    step: dict[str, str] | None = None
    match given.action:
        case "" | "show":
            return _memory_shown(known) + _pending_paragraph(agent)
        case "add":
            step = {"action": "add", "content": text}
        case "edit":
            old = _entry(known, target, given.number)
            step = {"action": "replace", "old_text": old, "content": text}
        case "remove":
            step = {"action": "remove", "old_text": _entry(known, target, given.number)}
        case _:
            pass
    if step is None:
        outcome = known.memory.undo(given.change, origin=BY_HAND)
    else:
        outcome = known.memory.apply(target, [step], origin=BY_HAND)
    if not outcome.applied:
        raise ConfigError(outcome.message)
    known.written(outcome)
    message = escape(capitalised(outcome.message))
    return f"{message}. New sessions use it; `%hermes reload` applies it to this one."


async def skill(agent: KernelAgent, given: Namespace) -> str:
    """Run a turn that follows a skill."""
    try:
        name = agent.knowledge.library.get(given.skill).name
    except SkillError as error:
        raise ConfigError(_for_user(error)) from error
    await agent.ask(f"/{name} {given.prompt}".rstrip())
    return ""


def _for_user(error: SkillError) -> str:
    return str(error).replace("skills_list lists", "`%hermes skills` lists")


def skills(agent: KernelAgent, given: Namespace) -> str | Awaitable[str]:
    """List, show or change skills, or manage sources of other people's skills."""
    action, name, library = given.action, given.skill, agent.knowledge.library
    if action in DECIDING:
        return DECIDING[action](agent.runtime.approvals, "skills", given.rest)
    try:
        match action:
            case "" | "list":
                return _skill_list(agent.knowledge, given.words) + _pending_paragraph(agent)
            case "show":
                return _skill_shown(agent.knowledge, name)
            case "enable" | "disable":
                library.switch(name, on=action == "enable")
                return f"Skill {code_span(name)} is {action}d."
            case "delete" | "undo":
                outcome = library.manage(action, name)
                if not outcome.applied:
                    raise ConfigError(outcome.message)
                return escape(outcome.message)
            case "trust":
                return _trusted(agent.knowledge, name, agent)
            case _:
                return _sourced(agent, action, given.rest)
    except SkillError as error:
        raise ConfigError(_for_user(error)) from error


async def _sourced(agent: KernelAgent, action: str, words: str) -> str:
    """Add, update or drop a source of skills, that is, a folder or repository."""
    sources = agent.knowledge.sources
    known = sources.all()
    try:
        if action == "add":
            place, *folder = shlex.split(words) or [""]
            source = source_of(place, " ".join(folder))
            same = known.get(source.name, source)
            if (same.place, same.folder) != (source.place, source.folder):
                text = f"`%hermes skills drop {source.name}` makes room"
                raise ConfigError(f"{source.name} already comes from {same.place}; {text}")
            return await _looked_at(agent, source)
        if missing := [name for name in words.split() if name not in known]:
            there = ", ".join(known) or "none"
            raise ConfigError(f"there is no source {missing[0]!r}; available: {there}")
        if action == "update":
            chosen = [known[name] for name in words.split() or known]
            return "\n\n".join([await _looked_at(agent, each) for each in chosen]) or _NO_SOURCE
        if not words:
            raise ConfigError(f"say which source: {', '.join(known) or 'none was added'}")
        for name in words.split():
            await in_thread(sources.drop, name)
    except (SkillError, OSError, ValueError) as error:
        raise ConfigError(f"nothing was changed: {error}") from error
    return f"Dropped {escape(', '.join(words.split()))}, with its skills."


async def _looked_at(agent: KernelAgent, source: SkillSource) -> str:
    """Show a source's skills and their changes; save them if the user agrees."""
    sources, name = agent.knowledge.sources, code_span(source.name)
    with tempfile.TemporaryDirectory(prefix="hermes-skills-") as folder:
        place = Path(source.place)
        if source.is_remote:
            place = Path(folder, source.name)
            source = replace(source, commit=await _cloned(source.place, place))
        files, seen = await in_thread(taken, place, source.folder)
    before = await in_thread(sources.files, source.name)
    if files == before and source.name in sources.all():
        return f"{name} is unchanged."
    rows = [
        (code_span(each.name), _MARKS[each.level], escape(one_line(visible(text), 140)))
        for each in seen
        for text in (each.why or each.description,)
    ]
    shown = code_block(
        head_tail(redact(visible(difference(before, files), lines=True)), WHOLE), "diff"
    )
    came = escape(visible(f"{source.place} {source.folder} {source.commit[:12]}".strip()))
    agent.note(
        f"**{escape(source.name)}** from {came}\n\n{grid(('skill', '', ''), rows)}\n\n{shown}"
    )
    if not files:
        raise SkillError("none of these skills can be used")
    if not can_ask(agent.shell):
        raise ConfigError(
            "not interactive: run this where you can review the skills before they are used"
        )
    many = number_of(sum(each.level != "dangerous" for each in seen), "skill")
    if (ask_user(f"Use {many} of {source.name} as shown? [y/N] ") or "").lower() not in (
        "y",
        "yes",
    ):
        return f"{name} is unchanged; nothing was saved."
    await in_thread(sources.keep, source, files)
    text = "New sessions use them; `%hermes reload` applies them to this one."
    return f"{name}: {many}. {text} `%hermes skills update` looks for changes."


async def _cloned(address: str, place: Path) -> str:
    """Clone a repository's latest commit without running code; return the commit's id."""
    said = bytearray()

    def heard(piece: bytes) -> bool:
        said.extend(piece[: MOST_SAID - len(said)])
        return True

    async def git(*words: str) -> bool:
        program = shutil.which("git")
        if program is None:
            raise SkillError("git is not installed; a folder can be added without it")
        said.clear()
        ended = await run_pipeline(
            [Program(command=[program, *words], env=child_environment() | GIT_ENVIRONMENT | _GIT)],
            cwd=place.parent,
            timeout=FETCH_SECONDS,
            sink=heard,
        )
        return ended.code == 0 and not ended.timed_out

    options = "--quiet --depth=1 --single-branch --no-tags --no-recurse-submodules --template="
    if not await git(
        "-c", "core.symlinks=false", "clone", *options.split(), "--", address, place.name
    ):
        text = one_line(redact(visible(said.decode("utf-8", "replace"))), 300)
        raise SkillError(f"git cannot fetch {address}: {text or 'it took too long'}")
    await git("-C", place.name, "rev-parse", "HEAD")
    return said.decode("ascii", "replace").strip()


def _pending_paragraph(agent: KernelAgent) -> str:
    """Return a paragraph about pending proposals, or "" if there are none."""
    try:
        waiting = agent.runtime.approvals.waiting()
    except ConfigError as error:
        return f"\n\n{escape(str(error))}"
    return f"\n\n{told_of(waiting)}" if waiting else ""


def trust(agent: KernelAgent, given: Namespace) -> str:
    """List files that were not loaded unchanged, trust one of them, or stop trusting one.

    `conversation` trusts the current conversation's untrusted content, and `kernel` the data that
    this kernel has loaded from the network.
    """
    known = agent.knowledge
    name = given.name
    if given.action == "conversation":
        where = agent.session.accept_outside() if agent.session else ""
        if not where:
            return "This conversation contains no untrusted content."
        if hosts() == (CONVERSATION,):
            trust_kernel()
        return f"Untrusted content ({escape(where)}) is trusted in this conversation from now on."
    if given.action == "kernel":
        if why := agent.guard.policy.why("network"):
            raise ConfigError(f"data from the network is not trusted: {why}")
        loaded = ", ".join(code_span(host) for host in trust_kernel())
        if not loaded:
            return "This kernel has loaded nothing from the network that Python reports."
        return f"What this kernel has loaded from {loaded} is trusted until a restart."
    if given.forget:
        for entry in known.trust.entries():
            if name in (entry.path, Path(entry.path).name):
                known.trust.revoke(entry.path)
                return f"{code_span(entry.path)} is no longer trusted."
        raise ConfigError(f"{name!r} was not trusted; `%hermes trust` lists the trusted files")
    if name:
        return _trusted(known, name, agent)
    found = [
        (f.name, str(f.verdict), "; ".join(f"{p.category}: {p.passage}" for p in f.findings[:3]))
        for f in _files(known, agent)
    ]
    skipped = known.library.skipped()
    found += [(each.name, "skill", each.reason) for each in skipped if each.source == "workdir"]
    rows = [
        (code_span(name), what, escape(one_line(visible(why), 140))) for name, what, why in found
    ]
    accepted = [(code_span(entry.path), "trusted", entry.when) for entry in known.trust.entries()]
    if not rows and not accepted:
        return "All files and skills were loaded as they are."
    table = grid(("file", "", "why"), [*rows, *accepted])
    return (
        f"{table}\n\n`%hermes trust NAME` accepts a file as it is now, `--forget PATH` undoes it."
    )


def _memory_shown(known: PromptSources) -> str:
    blocks = []
    for target in FILES:
        entries, usage = known.memory.entries(target), known.memory.usage(target)
        full = min(CELLS, round(CELLS * usage.used / usage.limit))
        bar = code_span("█" * full + "░" * (CELLS - full))
        lines = [f"**{target}** {bar} {usage}"]
        lines += [f"{n}. {safe_markdown(redact(text))}" for n, text in enumerate(entries, 1)]
        blocks.append("\n\n".join(lines) if entries else f"{lines[0]} · empty")
    try:
        records = known.memory.history()[:SHOWN_RECORDS]
    except OSError as error:
        blocks.append(f"Where the entries came from cannot be read: {escape(str(error))}")
        records = []
    if records:
        blocks.append("Last changes:\n\n" + grid(("when", "what", "by", "id"), map(_row, records)))
    blocks.append("`%hermes memory [add, edit, remove] [memory or user] …`, `%hermes memory undo`")
    return "\n\n".join(blocks)


def _row(record: MemoryRecord) -> tuple[object, ...]:
    change = record.changes[0] if record.changes else None
    text = (change.after or change.before) if change else ""
    verb = "undo of" if record.undoes else change.action if change else ""
    where = record.origin
    by = where.source + (f", turn {where.turn}" if where.turn else "")
    if where.notebook:
        by += f" of {Path(where.notebook).name}"
    gist = escape(one_line(redact(text), 80))
    return ago(record.at), f"{verb} {record.target}: {gist}", escape(by), code_span(record.id)


def _entry(known: PromptSources, target: str, number: str) -> str:
    entries = known.memory.entries(target)
    if number.isdigit() and 1 <= int(number) <= len(entries):
        return entries[int(number) - 1]
    message = f"{target} has entries 1 to {len(entries)}; `%hermes memory` shows them"
    raise ConfigError(message if entries else f"{target} has no entries")


def _skill_list(known: PromptSources, words: str) -> str:
    """Return all skills and those that are not offered, or the skills that match some words."""
    rows = [
        (
            code_span(f"{skill.category}/{skill.name}" if skill.category else skill.name)
            + ("" if skill.enabled else " (off)"),
            escape(one_line(visible(skill.description), 100)),
            skill.source,
            f"{skill.usage.uses}×" if skill.usage.uses else "–",
        )
        for skill in known.library.list(query=words, all_of_them=True)
    ]
    none = "No skill matches these words." if words else "No skills yet."
    blocks = [grid(("skill", "what for", "from", "used"), rows) if rows else none]
    if not words and (skipped := known.library.skipped()):
        lines = [
            (code_span(each.name), each.source, escape(one_line(visible(each.reason), 160)))
            for each in skipped
        ]
        blocks.append("Not offered:\n\n" + grid(("skill", "from", "why"), lines))
    blocks.append(
        "`%hermes skill NAME` follows one. `%hermes skills show NAME`, also `enable`, `disable`, "
        "`delete`, `undo`, `trust`"
    )
    return "\n\n".join(blocks)


def _skill_shown(known: PromptSources, name: str) -> str:
    view = known.library.view(name, counted=False)
    files = ", ".join(code_span(file) for file in view.files) or "none"
    marks = "".join(f"\n\n⚠ {escape(mark)}" for mark in view.marks)
    head = f"**{escape(view.skill.name)}** in {code_span(str(view.directory))} · files: {files}"
    return f"{head}{marks}\n\n{code_block(redact(visible(view.text, lines=True)), 'markdown')}"


def _files(known: PromptSources, agent: KernelAgent) -> list[ContextFile]:
    hints = agent.session.hints if agent.session else None
    hinted = [file for file in (hints.discovered if hints else ()) if file.verdict != "clean"]
    return [*known.untrusted(), *hinted]


def _trusted(known: PromptSources, name: str, agent: KernelAgent) -> str:
    for file in _files(known, agent):
        if name in (file.name, str(file.path), file.path.name):
            path, text = file.path, file.source
            message = f"{code_span(file.name)} is trusted as it is. `%hermes reload` loads it here."
            break
    else:
        skipped = next((each for each in known.library.skipped() if each.name == name), None)
        if skipped is None:
            shows = "`%hermes trust` lists them"
            raise ConfigError(f"{name!r} is not a file or skill to trust; {shows}")
        path = skipped.path
        text = path.read_text(encoding="utf-8", errors="replace")
        message = f"Skill {code_span(name)} is trusted as it is now."
    try:
        known.trust.accept(path, text)
    except OSError as error:
        raise ConfigError(f"this cannot be saved: {error}") from error
    if name == PROJECT:
        use_servers(agent)
        return f"{code_span(name)} is trusted as it is. {NEXT}"
    return message
