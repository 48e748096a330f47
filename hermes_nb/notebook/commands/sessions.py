"""`%hermes` commands about sessions: status, cost, search, history, export and deletion."""

from __future__ import annotations

import asyncio
import datetime
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from hermes_nb.agent.models import not_accepted
from hermes_nb.agent.session.export import FORMATS, SUFFIXES, Format, export
from hermes_nb.agent.session.quotes import Quote, quotes
from hermes_nb.agent.session.session import CHILD, REVIEW
from hermes_nb.agent.session.usage import notebook_usage, session_usage, usage_by_model, usage_since
from hermes_nb.core.budget import dollars
from hermes_nb.core.errors import ConfigError, StoreError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import write_atomic
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import SessionStore, StoredSession
from hermes_nb.core.text import TITLE, amount, head_tail, number_of, one_line, used
from hermes_nb.core.threads import in_thread
from hermes_nb.memory.recall import cells_of, spoken
from hermes_nb.models.profiles import prices_as_of
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.display.tables import ago, facts, grid, moment
from hermes_nb.notebook.display.views import can_draw
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import can_ask, working_directory
from hermes_nb.safety.markup import code_span, escape, safe_markdown
from hermes_nb.safety.provenance import outside
from hermes_nb.safety.redact import redact

OUTSIDE = "risky calls need approval until `%hermes trust conversation` or `%hermes new`"
"""Explanation shown for a conversation with untrusted content."""
LISTED_SESSIONS = 15
LISTED_HITS = 10
LISTED_MESSAGES = 30
LISTED_CHILDREN = 20
SHOWN = 1_500
"""Maximum characters of each message in the history."""


async def status(agent: KernelAgent, _given: Namespace) -> str:
    """Return the next turn's configuration, and the usage and cost so far."""
    from hermes_nb.notebook.commands.doctor import sandbox_told
    from hermes_nb.notebook.commands.verify import last_result

    settings = agent.settings()
    looks = not (settings.endpoint.named or agent.models.given or settings.cassette == "replay")
    # Each may take half a second (the sandbox only once per kernel).
    _, waiting, sandbox = await asyncio.gather(
        agent.access.look(),
        in_thread(not_accepted if looks else lambda _: [], settings),
        in_thread(sandbox_told),
    )
    rows = [
        ("model", agent.models.name or settings.endpoint.model or "chosen at the first turn"),
        *[("server", line) for line in waiting],
        ("approvals", settings.approve),
        ("sandbox", sandbox),
        ("requests a turn", str(settings.max_requests)),
        ("home", str(settings.home)),
        ("notebook", agent.notebook or "unknown"),
    ]
    if verified := await last_result(agent):
        rows.append(("verified", verified))
    if (turn := agent.turn_here) is not None:
        rows.append(("last turn", turn.status))
    if (session := agent.session) is not None:
        where = outside(session.messages)
        rows += [
            ("session", session.id),
            ("messages", str(len(session.messages))),
            *([("from outside", f"{where}: {OUTSIDE}")] if where else []),
            ("prompt now", f"about {amount(session.agent.prompt_tokens())} tokens"),
            ("sent by this kernel", _used(session.usage)),
        ]
    rows += _totals(agent)
    sources = [f"{name}: {source}" for name, source in settings.sources.items()]
    rows.append(("set by", "; ".join(sources) or "defaults"))
    if settled := settings.policy:
        rows.append(("policy", settled.summary))
    return facts(rows)


def cost(agent: KernelAgent, _given: Namespace) -> str:
    """Return the session's usage by job and model, and today's usage across all sessions."""
    rows = [] if (turn := agent.turn_here) is None else [("last turn", turn.status)]
    if (session := agent.session) is not None:
        jobs = session.by_job.items()
        rows += [(f"{job}, {model}", _used(usage)) for (job, model), usage in jobs]
    rows += _totals(agent, today=True)
    text = f"Prices as of {prices_as_of()}, if the provider does not report the cost of a request."
    text += " For requests with an unknown price, only tokens are counted."
    return f"{facts(rows)}\n\n{text}"


def _totals(agent: KernelAgent, *, today: bool = False) -> Iterable[tuple[str, str]]:
    """Yield the total usage of the session, its reviews and its notebook, and the budgets."""
    try:
        if (session := agent.session) is not None:
            for model, usage in usage_by_model(session.store, session.id, REVIEW).items():
                yield f"its reviews, {model or 'any model'}", _used(usage)
            yield "session in all", _used(session_usage(session.store, session.id))
            if agent.notebook:
                yield "notebook in all", _used(notebook_usage(session.store, agent.notebook))
        if today:
            midnight = datetime.datetime.now().astimezone().replace(hour=0, minute=0, second=0)
            yield "sessions of today", _used(usage_since(agent.store, midnight.timestamp()))
    except StoreError as error:
        yield "in all", f"cannot be read: {error}"
    budget = agent.settings().budget
    for name, limits in (("session", budget.session), ("notebook", budget.notebook)):
        parts = [] if limits.cost is None else [dollars(limits.cost)]
        parts += [] if limits.tokens is None else [f"{limits.tokens:,} tokens"]
        if parts:
            yield f"budget of the {name}", ", ".join(parts)


def _used(usage: Usage) -> str:
    return ", ".join(used(usage)) or "nothing yet"


def last(agent: KernelAgent, _given: Namespace) -> str:
    """Show the last turn again, for example after a page reload has lost its output."""
    if agent.last is None:
        raise ConfigError(
            "this kernel has run no turn yet; `%hermes history` shows earlier sessions"
        )
    if can_draw(sys.stdout):
        from hermes_nb.notebook.display.terminal import DrawnView

        DrawnView(agent.last).reprint()
        return ""
    return agent.last.finished()


def new(agent: KernelAgent, _given: Namespace) -> str:
    """End the session."""
    agent.new()
    return "The next turn starts a new session."


def resume(agent: KernelAgent, given: Namespace) -> str:
    """Resume an earlier session."""
    session = agent.resume(given.session)
    said = number_of(len(session.messages), "message")
    return f"Resumed session {code_span(session.id)} with {said}."


def rename(agent: KernelAgent, given: Namespace) -> str:
    """Rename the session."""
    title = one_line(redact(given.title), TITLE)
    stored = _stored(agent, "")
    agent.store.rename(stored.id, title)
    return f"Session {code_span(stored.id)} is called “{escape(title)}”."


def listed_sessions(agent: KernelAgent) -> str:
    """List recent sessions."""
    listed = agent.store.sessions(limit=2 * LISTED_SESSIONS)
    found = [stored for stored in listed if stored.source != REVIEW][:LISTED_SESSIONS]
    if not found:
        return "There are no sessions yet. Send a prompt in a `%%hermes` cell to start one."
    current = agent.session.id if agent.session else ""
    header = ("session", "notebook", "messages", "last used", "tokens", "cost", "title")
    return grid(header, (_session_row(stored, current, depth) for stored, depth in tree(found)))


def tree(found: Sequence[StoredSession]) -> Iterable[tuple[StoredSession, int]]:
    """Yield sessions with their depth, each branch below its parent."""
    ids = {stored.id for stored in found}

    def below(parent: str, depth: int) -> Iterable[tuple[StoredSession, int]]:
        for stored in found:
            if (stored.parent if stored.parent in ids else "") == parent:
                yield stored, depth
                yield from below(stored.id, depth + 1)

    return below("", 0)


def search(agent: KernelAgent, given: Namespace) -> str:
    """Search messages and tool output across all sessions."""
    found = quotes(agent.store, given.query, limit=LISTED_HITS)
    if not found:
        return "Nothing found. Try fewer or other words."
    rows = [_hit_row(quote, agent.store) for quote in found]
    return grid(("when", "who", "what", "session", "where"), rows)


def history(agent: KernelAgent, given: Namespace) -> str:
    """Show a session's messages, by default those of the current one."""
    stored = _stored(agent, given.session)
    rows = [row for row in agent.store.rows(stored.id) if row.state != "undone"]
    shown = [row for row in rows if row.message.role in ("user", "assistant")]
    blocks, nothing = [], "Nothing has been said in this session yet."
    if stored.source == CHILD:
        made = (
            f"created by {code_span(stored.parent)}" if stored.parent else "created by no session"
        )
        blocks.append(f"{code_span(stored.id)} was {made} for one task: {_title(stored)}")
        # A map's own session has no messages.
        nothing = (
            "It has no messages. To see the answers of a map, run its `%hermes map` line again."
        )
    if (left_out := len(shown) - LISTED_MESSAGES) > 0:
        more = f"{left_out} earlier messages are left out; `%hermes export` has them all."
        blocks.append(f"*{more}*")
    said = ((row, spoken(row.message)) for row in shown[-LISTED_MESSAGES:])
    blocks += [
        f"**{'You' if row.message.role == 'user' else 'Hermes'}** · {moment(row.at)}\n\n"
        f"{safe_markdown(head_tail(redact(words), SHOWN))}"
        for row, words in said
        if words
    ] or [nothing]
    return "\n\n".join([*blocks, *_children(stored, agent.store)])


def export_(agent: KernelAgent, given: Namespace) -> str:
    """Write a session to a file in the working directory."""
    wanted = given.session.strip("\"'")
    form: Format = given.action or "markdown"
    if not given.action and (before := wanted.rpartition(" "))[2] in SUFFIXES:
        wanted, form = before[0], cast("Format", before[2])
    try:
        stored = _stored(agent, wanted)
    except ConfigError as error:
        formats = f"; the formats are {', '.join(FORMATS)}" if wanted else ""
        raise ConfigError(f"{error}{formats}") from error
    rows = [row for row in agent.store.rows(stored.id) if row.state != "undone"]
    path = working_directory() / f"hermes-{stored.id}{SUFFIXES[form]}"
    if path.exists():
        raise ConfigError(f"{path.name} already exists; move it first")
    try:
        write_atomic(path, export(stored, rows, form).encode("utf-8", "replace"), mode=0o600)
    except OSError as error:
        why = error.strerror or str(error)
        message = f"{path} cannot be written ({why}); `%cd` to another folder"
        raise ConfigError(message) from error
    return f"Wrote {code_span(path.name)} ({number_of(len(rows), 'message')}, without secrets)."


def _stored(agent: KernelAgent, wanted: str) -> StoredSession:
    """Return the named session, the current one, or the latest."""
    if wanted:
        return agent.sessions.find(wanted)
    if agent.session is not None:
        stored = agent.session.store.get(agent.session.id)
        if stored is not None:
            return stored
    return agent.sessions.find("")


def _session_row(stored: StoredSession, current: str, depth: int) -> tuple[object, ...]:
    mark = " (this one)" if stored.id == current else ""
    branch = f"{'&nbsp;' * 2 * (depth - 1)}└ " if depth else ""
    name = Path(stored.notebook).name if stored.notebook else "–"
    spent = stored.usage
    return (
        branch + code_span(stored.id) + mark,
        escape(name),
        stored.messages,
        ago(stored.written),
        amount(spent.input + spent.output),
        "–" if spent.cost is None else dollars(spent.cost),
        escape(one_line(redact(stored.title), 50)),
    )


def _hit_row(quote: Quote, store: SessionStore) -> tuple[object, ...]:
    hit = quote.hit
    stored = store.get(hit.session_id)
    name = Path(stored.notebook).name if stored and stored.notebook else "–"
    rows = store.rows(hit.session_id, first=hit.position, last=hit.position)
    cells = [cell for row in rows for cell in cells_of(row.message)]
    where = escape(name) + (f", cell {code_span(cells[0])}" if cells else "")
    said, end = "", 0
    for start, stop in quote.marks:
        said += f"{escape(quote.text[end:start])}**{escape(quote.text[start:stop])}**"
        end = stop
    said += escape(quote.text[end:])
    session = code_span(hit.session_id)
    if stored is not None and stored.source == CHILD:
        session += f", a child of {code_span(stored.parent)}" if stored.parent else ", a child"
    return moment(hit.when), hit.role, said, session, where


def _children(stored: StoredSession, store: SessionStore) -> Iterable[str]:
    """Yield a table of a session's child sessions, if there are any."""
    family = [store.get(each) for each in store.lineage(stored.id)]
    rows = [
        (code_span(each.id), _title(each), each.messages, _used(each.usage))
        for each in family
        if each is not None and each.source == CHILD and each.parent == stored.id
    ]
    if rows:
        left_out = len(rows) - LISTED_CHILDREN
        more = f"\n\n{left_out} earlier ones are left out." if left_out > 0 else ""
        table = grid(("child", "task", "messages", "used"), rows[-LISTED_CHILDREN:])
        yield f"Children, each with `%hermes history` of its own:\n\n{table}{more}"


def _title(stored: StoredSession) -> str:
    return escape(one_line(visible(redact(stored.title)), 60)) or "untitled"


async def sessions(agent: KernelAgent, given: Namespace) -> str:
    """List recent sessions, or delete some by name or age."""
    if not given.action and given.older_than is None:
        return listed_sessions(agent)
    from hermes_nb.agent.session.retention import forget, gather, older

    names, yes, days = given.session.split(), given.yes, given.older_than
    if bool(names) == (days is not None) or not given.action:
        line = "`%hermes sessions delete"
        raise ConfigError(f"say which: {line} ID…` or {line} --older-than 90d`")
    current = agent.session.id if agent.session else ""
    wanted = [agent.sessions.find(name, loosely=False) for name in names]
    used = agent.sessions.used
    for each in wanted:
        if each.id in used:
            raise ConfigError(f"{each.id} is in use here; run `%hermes new` first")
    if days is not None:
        found = older(agent.store, days, but=current)
        wanted = [each for each in found if each.id not in used]
    home = agent.settings().home
    what = await in_thread(gather, agent.store, home, wanted)
    if not what.sessions:
        return "No session is that old."
    if not (yes or can_ask(agent.shell)):
        message = f"not interactive: pass `--yes` to delete {what} for good"
        raise ConfigError(message)
    if not yes and (ask_user(f"Delete {what} for good? [y/N] ") or "").lower() not in ("y", "yes"):
        return "Nothing was deleted."
    try:
        await in_thread(forget, agent.store, home, what, days=days or 0)
    except OSError as error:
        message = f"not everything could be deleted ({error}); run the same line again"
        raise ConfigError(message) from error
    copies = [path.name for path in sorted(home.glob("notebook.db.damaged-*"))]
    left = f" Damaged copies remain; delete them yourself: {', '.join(copies)}." if copies else ""
    return f"Deleted {what}.{left}"
