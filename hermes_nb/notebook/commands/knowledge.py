"""`%hermes memory`, `skills` and `trust`: what Hermes knows, and the user's say over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hermes_nb.app.knowledge import Knowledge
from hermes_nb.app.reviews import told_of
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import one_line
from hermes_nb.learning.proposals import Kind
from hermes_nb.memory.curated import FILES, Outcome
from hermes_nb.memory.curation.history import Origin, Record
from hermes_nb.notebook.commands.approvals import approve, pending, reject
from hermes_nb.notebook.display.wording import ago, grid
from hermes_nb.notebook.resident import Resident
from hermes_nb.prompt.context_files import ContextFile
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible
from hermes_nb.skills.document import SkillError
from hermes_nb.skills.skill import Skill

BY_HAND = Origin(source="user")
SHOWN_RECORDS = 5
CELLS = 20
"""Of the bar that shows how full a memory is."""


def memory(resident: Resident, words: str) -> str:
    """Show the curated memory, or change it."""
    action, rest = _split(words, default="show")
    known = resident.knowledge
    acts: dict[str, Callable[[Knowledge, str], str]] = {
        "show": lambda known, _: _memory_shown(known) + _waits(resident),
        "add": _memory_added,
        "edit": _memory_edited,
        "remove": _memory_removed,
        "undo": lambda known, rest: _done(known, known.memory.undo(rest, origin=BY_HAND)),
        **_deciding(resident, "memory"),
    }
    if action not in acts:
        message = f"there is no `%hermes memory {action}`; use {', '.join(acts)}"
        raise ConfigError(message)
    return acts[action](known, rest)


def skills(resident: Resident, words: str) -> str:
    """List the skills, or look at or change one."""
    action, name = _split(words, default="list")
    library = resident.knowledge.library
    try:
        match action:
            case "list":
                return _skill_list(resident.knowledge) + _waits(resident)
            case "show":
                return _skill_shown(resident.knowledge, name)
            case "enable" | "disable":
                library.switch(name, on=action == "enable")
                return f"Skill {code_span(name)} is {action}d."
            case "delete" | "undo":
                outcome = library.manage(action, name)
                if not outcome.applied:
                    raise ConfigError(outcome.message)
                return escape(outcome.message)
            case "trust":
                return trust(resident, name)
            case "pending" | "approve" | "reject":
                return _deciding(resident, "skills")[action](resident.knowledge, name)
            case _:
                pass
    except SkillError as error:
        told = str(error).replace("skills_list shows", "`%hermes skills` shows")  # the agent's word
        raise ConfigError(told) from error
    message = (
        "use `%hermes skills [list, show, enable, disable, delete, undo or trust] [NAME]`, or "
        "`[pending, approve or reject] [N]`"
    )
    raise ConfigError(message)


def _waits(resident: Resident) -> str:
    """Return a paragraph on what waits for the user's approval, "" where nothing does."""
    try:
        waiting = resident.workshop.approvals.waiting()
    except ConfigError as error:
        return f"\n\n{escape(str(error))}"
    return f"\n\n{told_of(waiting)}" if waiting else ""


def _deciding(resident: Resident, kind: Kind) -> dict[str, Callable[[Knowledge, str], str]]:
    """Return what can be done with what waits for the user's approval."""
    approvals = resident.workshop.approvals
    return {
        "pending": lambda _, rest: pending(approvals, kind, rest),
        "approve": lambda _, rest: approve(approvals, kind, rest),
        "reject": lambda _, rest: reject(approvals, kind, rest),
    }


def trust(resident: Resident, words: str) -> str:
    """Show what was not loaded as it stands, accept one such file, or take that back.

    `conversation` accepts the text from outside that the running conversation holds.
    """
    known = resident.knowledge
    action, name = _split(words, default="")
    if action == "conversation":
        where = resident.session.accept_outside() if resident.session else ""
        if not where:
            return "The conversation holds no text from outside."
        return f"Text from outside ({escape(where)}) is trusted in this conversation from now on."
    if action == "--forget":
        return _forgotten(known, name)
    if action:
        return _trusted(known, words.strip(), resident)
    rows = [
        (code_span(name), what, escape(one_line(visible(why), 140)))
        for name, what, why in _doubtful(known, resident)
    ]
    accepted = [(code_span(entry.path), "trusted", entry.when) for entry in known.trust.entries()]
    if not rows and not accepted:
        return "Everything that was found was loaded as it stands."
    table = grid(("file", "", "why"), [*rows, *accepted])
    return (
        f"{table}\n\n`%hermes trust NAME` accepts a file as it is now, `--forget PATH` undoes it."
    )


def _memory_shown(known: Knowledge) -> str:
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


def _memory_added(known: Knowledge, words: str) -> str:
    target, text = _target(words)
    step = {"action": "add", "content": text}
    return _done(known, known.memory.apply(target, [step], origin=BY_HAND))


def _memory_edited(known: Knowledge, words: str) -> str:
    target, rest = _target(words)
    number, _, text = rest.partition(" ")
    step = {"action": "replace", "old_text": _entry(known, target, number), "content": text}
    return _done(known, known.memory.apply(target, [step], origin=BY_HAND))


def _memory_removed(known: Knowledge, words: str) -> str:
    target, number = _target(words)
    step = {"action": "remove", "old_text": _entry(known, target, number)}
    return _done(known, known.memory.apply(target, [step], origin=BY_HAND))


def _target(words: str) -> tuple[str, str]:
    """Return which memory is meant, and the rest; without a name it is `memory`."""
    first, _, rest = words.strip().partition(" ")
    return (first, rest.strip()) if first in FILES else ("memory", words.strip())


def _entry(known: Knowledge, target: str, number: str) -> str:
    entries = known.memory.entries(target)
    if number.isdigit() and 1 <= int(number) <= len(entries):
        return entries[int(number) - 1]
    message = f"{target} has entries 1 to {len(entries)}; `%hermes memory` shows them"
    raise ConfigError(message if entries else f"{target} has no entries")


def _done(known: Knowledge, outcome: Outcome) -> str:
    if not outcome.applied:
        raise ConfigError(outcome.message)
    known.written(outcome)
    told = outcome.message[:1].upper() + outcome.message[1:]
    return f"{escape(told)}. The next session knows it; `%hermes reload` tells this one."


def _skill_list(known: Knowledge) -> str:
    found = known.library.list(all_of_them=True)
    rows = [_skill_row(skill) for skill in found]
    blocks = [grid(("skill", "what for", "from", "used"), rows)] if rows else ["No skills yet."]
    if skipped := known.library.skipped():
        lines = [
            (code_span(each.name), each.source, escape(one_line(visible(each.reason), 160)))
            for each in skipped
        ]
        blocks.append("Not offered:\n\n" + grid(("skill", "from", "why"), lines))
    blocks.append("`%hermes skills show NAME`, also `enable`, `disable`, `delete`, `undo`, `trust`")
    return "\n\n".join(blocks)


def _skill_row(skill: Skill) -> tuple[object, ...]:
    state = "" if skill.enabled else " (off)"
    name = f"{skill.category}/{skill.name}" if skill.category else skill.name
    used = f"{skill.usage.uses}×" if skill.usage.uses else "–"
    gist = escape(one_line(visible(skill.description), 100))
    return code_span(name) + state, gist, skill.source, used


def _skill_shown(known: Knowledge, name: str) -> str:
    view = known.library.view(name, counted=False)
    files = ", ".join(code_span(file) for file in view.files) or "none"
    marks = "".join(f"\n\n⚠ {escape(mark)}" for mark in view.marks)
    head = f"**{escape(view.skill.name)}** in {code_span(str(view.directory))} · files: {files}"
    return f"{head}{marks}\n\n{code_block(redact(visible(view.text, lines=True)), 'markdown')}"


def _doubtful(known: Knowledge, resident: Resident) -> list[tuple[str, str, str]]:
    """Return names, what happened and why, of what was found and not loaded as it stands."""
    rows = [(f.name, str(f.verdict), _passages(f)) for f in _files(known, resident)]
    rows += [
        (each.name, "skill", each.reason)
        for each in known.library.skipped()
        if each.source == "workdir"
    ]
    return rows


def _files(known: Knowledge, resident: Resident) -> list[ContextFile]:
    hints = resident.session.hints if resident.session else None
    hinted = [file for file in (hints.discovered if hints else ()) if file.verdict != "clean"]
    return [*known.untrusted(), *hinted]


def _passages(file: ContextFile) -> str:
    return "; ".join(f"{found.category}: {found.passage}" for found in file.findings[:3])


def _trusted(known: Knowledge, name: str, resident: Resident) -> str:
    for file in _files(known, resident):
        if name in (file.name, str(file.path), file.path.name):
            _accept(known, file.path, file.source)
            return f"{code_span(file.name)} is trusted as it is. `%hermes reload` loads it here."
    for skipped in known.library.skipped():
        if name == skipped.name:
            text = skipped.path.read_text(encoding="utf-8", errors="replace")
            _accept(known, skipped.path, text)
            return f"Skill {code_span(name)} is trusted as it is now."
    message = f"nothing called {name!r} waits for your trust; `%hermes trust` shows what does"
    raise ConfigError(message)


def _accept(known: Knowledge, path: Path, text: str) -> None:
    try:
        known.trust.accept(path, text)
    except OSError as error:
        message = f"that cannot be remembered: {error}"
        raise ConfigError(message) from error


def _forgotten(known: Knowledge, name: str) -> str:
    for entry in known.trust.entries():
        if name in (entry.path, Path(entry.path).name):
            known.trust.revoke(entry.path)
            return f"{code_span(entry.path)} is no longer trusted."
    message = f"{name!r} was not trusted; `%hermes trust` shows what is"
    raise ConfigError(message)


def _split(words: str, *, default: str) -> tuple[str, str]:
    """Return the first word and the rest as it was written."""
    first, _, rest = words.strip().partition(" ")
    return first or default, rest.strip()
