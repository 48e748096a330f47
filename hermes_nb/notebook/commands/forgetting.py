"""`%hermes sessions delete`: forget sessions, after one question that says how much that is."""

from __future__ import annotations

import re

from hermes_nb.app.forgetting import forget, gather, older
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import StoredSession
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.commands.session import sessions as listed
from hermes_nb.notebook.display.view import can_ask
from hermes_nb.notebook.resident import Resident

AGE = re.compile(r"--older-than[ =](\d+)d?(?= |$)")


async def sessions(resident: Resident, words: str) -> str:
    """List recent sessions, or delete those that are named or older than so many days."""
    if not words:
        return listed(resident, "")
    resident.permission.check("delete sessions")
    rest, yes = re.subn(r"(^| )--yes(?= |$)", "", words)
    age = AGE.search(rest)
    days = int(age[1]) if age else 0
    verb, *names = AGE.sub("", rest).split() or [""]
    if verb != "delete" or bool(names) == bool(age) or any(n.startswith("-") for n in names):
        message = "say which: `%hermes sessions delete ID…`, or `--older-than 90d`"
        raise ConfigError(message)
    current = resident.session.id if resident.session else ""
    wanted = older(resident.store, days, but=current) if age else _named(resident, names, current)
    home = resident.settings().home
    what = await in_thread(lambda: gather(resident.store, home, wanted))
    if not what.sessions:
        return "No session is that old."
    if not (yes or can_ask(resident.shell)):
        message = f"nobody can be asked here: with `--yes`, {what} would be deleted for good"
        raise ConfigError(message)
    if not yes and (ask_user(f"Delete {what} for good? [y/N] ") or "").lower() not in ("y", "yes"):
        return "Nothing was deleted."
    try:
        await in_thread(lambda: forget(resident.store, home, what, days=days))
    except OSError as error:
        message = f"not all of it could be deleted ({error}); the same line goes on"
        raise ConfigError(message) from error
    copies = [path.name for path in sorted(home.glob("notebook.db.damaged-*"))]
    left = f" Damaged copies are left, delete them yourself: {', '.join(copies)}." if copies else ""
    return f"Deleted {what}.{left}"


def _named(resident: Resident, names: list[str], current: str) -> list[StoredSession]:
    found = [resident.find_session(name) for name in names]
    if current in [each.id for each in found]:
        message = f"{current} is the session of this kernel; `%hermes new` leaves it"
        raise ConfigError(message)
    return found
