"""`%hermes memory`, `skills` and `trust`: what Hermes knows, what waits, and the user's say."""

from __future__ import annotations

from pathlib import Path

from hermes_nb.agent.approvals import Approvals, Decided
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.proposals import Kind, Proposal
from hermes_nb.agent.reviews import told_of
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import capitalised, head_tail, one_line, visible
from hermes_nb.memory.curated import FILES
from hermes_nb.memory.history import BY_HAND, Record
from hermes_nb.notebook.display.tables import ago, grid
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.prompt.context_files import ContextFile
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hermes_nb.safety.redact import redact
from hermes_nb.skills.document import SkillError

LISTED = 1_500
"""Characters of each thing in the list; on its own it is shown whole."""
WHOLE = 100_000


def pending(approvals: Approvals, kind: Kind, words: str) -> str:
    """Show what waits, or one thing of it whole."""
    waiting = approvals.waiting(kind)
    if words:
        wanted = _number(words, kind)
        waiting = [each for each in waiting if each.number == wanted]
        if not waiting:
            message = f"nothing waits under {wanted}; `%hermes {kind} pending` lists what does"
            raise ConfigError(message)
    if not waiting:
        return "Nothing waits for your approval."
    limit = WHOLE if words else LISTED
    blocks = [_block(each, approvals.shown(each), limit) for each in waiting]
    ways = f"`%hermes {kind} approve N`, `%hermes {kind} reject N`, or `all` for N"
    if kind == "memory":
        ways += ", and `%hermes memory approve N TEXT` in other words"
    return "\n\n".join([*blocks, ways])


def approve(approvals: Approvals, kind: Kind, words: str) -> str:
    """Save what waits under some numbers or all, or under one of them in other words."""
    first, _, rest = words.strip().partition(" ")
    text = None if all(map(str.isdecimal, rest.replace(",", " ").split())) else rest.strip()
    one = "" if text is None else str(_number(first, kind))
    numbers = _numbers(approvals, kind, one or words)
    outcomes = [approvals.approve(number, text=text) for number in numbers]
    saved = [_told(outcome) for outcome in outcomes if outcome.done]
    left = [f"{o.proposal.number} still waits: {o.message}" for o in outcomes if not o.done]
    if left and not saved:
        raise ConfigError("; ".join(left))
    if saved:
        undo = " NAME" if kind == "skills" else ""
        saved.append(f"`%hermes {kind} undo{undo}` takes the last back.")
    return "\n\n".join([*saved, *map(escape, left)])


def reject(approvals: Approvals, kind: Kind, words: str) -> str:
    """Drop what waits under some numbers, or all of a kind."""
    numbers = _numbers(approvals, kind, words)
    return "\n\n".join(_told(approvals.reject(number)) for number in numbers)


def _block(proposal: Proposal, shown: str, limit: int) -> str:
    origin = proposal.origin
    notebook = f" in {Path(origin.notebook).name}" if origin.notebook else ""
    came = f"a {origin.source}{notebook}, {ago(proposal.at)}"
    lines = [f"**{proposal.number}** {escape(proposal.gist)} · {escape(came)}"]
    if proposal.begun:
        lines.append("The process that was saving it died: it may be there already.")
    if proposal.problem:
        lines.append(f"It could not be saved: {escape(redact(visible(proposal.problem)))}")
    text = head_tail(redact(visible(shown, lines=True)), limit)
    return "\n\n".join([*lines, code_block(text, "diff")])


def _told(outcome: Decided) -> str:
    return f"{escape(capitalised(outcome.message))}."


def _numbers(approvals: Approvals, kind: Kind, words: str) -> list[int]:
    """Return the numbers that words name, "all" of what waits; raise `ConfigError` for none.

    Also for one under which something of the other kind waits: whoever decides on it should have
    seen it, in the list of its own kind.
    """
    if words.strip().casefold() == "all":
        found = [each.number for each in approvals.waiting(kind)]
        if not found:
            raise ConfigError("nothing waits for your approval")
        return found
    found = list(dict.fromkeys(_number(word, kind) for word in words.replace(",", " ").split()))
    for each in approvals.waiting():
        if each.number in found and each.kind != kind:
            raise ConfigError(f"{each.number} is about {each.kind}: `%hermes {each.kind} pending`")
    return found or [_number("", kind)]


def _number(word: str, kind: Kind) -> int:
    if word.isdecimal() and len(word) <= DIGITS:
        return int(word)
    raise ConfigError(f"which one? give its number; `%hermes {kind} pending` shows them")


DECIDING = {"pending": pending, "approve": approve, "reject": reject}
DIGITS = 9
"""Of the largest number of a proposal."""
SHOWN_RECORDS = 5
CELLS = 20
"""Of the bar that shows how full a memory is."""


def memory(agent: KernelAgent, words: str) -> str:
    """Show the curated memory, or change it."""
    action, rest = _split(words, default="show")
    known = agent.knowledge
    if action in DECIDING:
        return DECIDING[action](agent.runtime.approvals, "memory", rest)
    first, _, more = rest.partition(" ")
    target, text = (first, more.strip()) if first in FILES else ("memory", rest)
    step: dict[str, str] | None = None
    match action:
        case "show":
            return _memory_shown(known) + _waits(agent)
        case "add":
            step = {"action": "add", "content": text}
        case "edit":
            number, _, text = text.partition(" ")
            old = _entry(known, target, number)
            step = {"action": "replace", "old_text": old, "content": text}
        case "remove":
            step = {"action": "remove", "old_text": _entry(known, target, text)}
        case "undo":
            pass
        case _:
            others = "show, add, edit, remove, undo, pending, approve, reject"
            raise ConfigError(f"there is no `%hermes memory {action}`; use {others}")
    if step is None:
        outcome = known.memory.undo(rest, origin=BY_HAND)
    else:
        outcome = known.memory.apply(target, [step], origin=BY_HAND)
    if not outcome.applied:
        raise ConfigError(outcome.message)
    known.written(outcome)
    told = escape(capitalised(outcome.message))
    return f"{told}. The next session knows it; `%hermes reload` tells this one."


def skills(agent: KernelAgent, words: str) -> str:
    """List the skills, or look at or change one."""
    action, name = _split(words, default="list")
    library = agent.knowledge.library
    if action in DECIDING:
        return DECIDING[action](agent.runtime.approvals, "skills", name)
    try:
        match action:
            case "list":
                return _skill_list(agent.knowledge) + _waits(agent)
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
                return trust(agent, name)
            case _:
                pass
    except SkillError as error:
        told = str(error).replace("skills_list shows", "`%hermes skills` shows")  # the agent's word
        raise ConfigError(told) from error
    raise ConfigError(
        "use `%hermes skills [list, show, enable, disable, delete, undo or trust] [NAME]`, or "
        "`[pending, approve or reject] [N]`"
    )


def _waits(agent: KernelAgent) -> str:
    """Return a paragraph on what waits for the user's approval, "" where nothing does."""
    try:
        waiting = agent.runtime.approvals.waiting()
    except ConfigError as error:
        return f"\n\n{escape(str(error))}"
    return f"\n\n{told_of(waiting)}" if waiting else ""


def trust(agent: KernelAgent, words: str) -> str:
    """Show what was not loaded as it stands, accept one such file, or take that back.

    `conversation` accepts the text from outside that the running conversation holds.
    """
    known = agent.knowledge
    action, name = _split(words, default="")
    if action == "conversation":
        where = agent.session.accept_outside() if agent.session else ""
        if not where:
            return "The conversation holds no text from outside."
        return f"Text from outside ({escape(where)}) is trusted in this conversation from now on."
    if action == "--forget":
        for entry in known.trust.entries():
            if name in (entry.path, Path(entry.path).name):
                known.trust.revoke(entry.path)
                return f"{code_span(entry.path)} is no longer trusted."
        raise ConfigError(f"{name!r} was not trusted; `%hermes trust` shows what is")
    if action:
        return _trusted(known, words.strip(), agent)
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
        return "Everything that was found was loaded as it stands."
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


def _row(record: Record) -> tuple[object, ...]:
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


def _skill_list(known: PromptSources) -> str:
    rows = [
        (
            code_span(f"{skill.category}/{skill.name}" if skill.category else skill.name)
            + ("" if skill.enabled else " (off)"),
            escape(one_line(visible(skill.description), 100)),
            skill.source,
            f"{skill.usage.uses}×" if skill.usage.uses else "–",
        )
        for skill in known.library.list(all_of_them=True)
    ]
    blocks = [grid(("skill", "what for", "from", "used"), rows)] if rows else ["No skills yet."]
    if skipped := known.library.skipped():
        lines = [
            (code_span(each.name), each.source, escape(one_line(visible(each.reason), 160)))
            for each in skipped
        ]
        blocks.append("Not offered:\n\n" + grid(("skill", "from", "why"), lines))
    blocks.append("`%hermes skills show NAME`, also `enable`, `disable`, `delete`, `undo`, `trust`")
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
            told = f"{code_span(file.name)} is trusted as it is. `%hermes reload` loads it here."
            break
    else:
        skipped = next((each for each in known.library.skipped() if each.name == name), None)
        if skipped is None:
            shows = "`%hermes trust` shows what does"
            raise ConfigError(f"nothing called {name!r} waits for your trust; {shows}")
        path = skipped.path
        text = path.read_text(encoding="utf-8", errors="replace")
        told = f"Skill {code_span(name)} is trusted as it is now."
    try:
        known.trust.accept(path, text)
    except OSError as error:
        raise ConfigError(f"that cannot be remembered: {error}") from error
    return told


def _split(words: str, *, default: str) -> tuple[str, str]:
    """Return the first word and the rest as it was written."""
    first, _, rest = words.strip().partition(" ")
    return first or default, rest.strip()
