"""`%hermes doctor`: what a turn needs, whether it is there, and what to do if it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.commands import installed
from hermes_nb.notebook.commands.installed import Finding, look
from hermes_nb.notebook.display.view import can_ask, has_kernel
from hermes_nb.notebook.display.wording import facts

if TYPE_CHECKING:
    from hermes_nb.notebook.resident import Resident


OFFLINE = "--offline"


async def doctor(resident: Resident, words: str) -> str:
    """Check what a turn needs in this kernel and say what to do about what is missing.

    Servers that are named are asked for their models, unless `--offline` is given.
    """
    if words.strip() not in ("", OFFLINE):
        message = f"`%hermes doctor` takes no words but {OFFLINE}, which sends nothing anywhere"
        raise ConfigError(message)
    found = await in_thread(lambda: _found(resident))
    if not words and resident.deck.mode != "replay" and not resident.models.given:
        from hermes_nb.notebook.commands.endpoints import endpoints

        at = next(i for i, finding in enumerate(found) if finding.name == "key") + 1
        found[at:at] = await in_thread(lambda: endpoints(resident.settings()))
    found += [await _front_end(resident), installed.sandbox()]
    return facts([(finding.name, finding.marked) for finding in found])


def _found(resident: Resident) -> list[Finding]:
    return look(
        [
            ("versions", installed.versions),
            ("model", lambda: _model(resident)),
            ("key", lambda: installed.key(resident.settings())),
            ("weights", installed.weights),
            ("home", lambda: installed.home(resident.settings())),
            ("sessions", lambda: installed.sessions(resident.settings())),
        ]
    )


def _model(resident: Resident) -> Finding:
    if resident.deck.mode == "replay":
        told = f"replay of {resident.deck.tape.path}: no model is asked or looked for"
        return Finding("model", "ok", told)
    return installed.model(resident.settings(), resident.variables)


async def _front_end(resident: Resident) -> Finding:
    page = await resident.desk.frontend.probe()
    if page is not None:
        told = f"{page.app} shows {page.path}; cells can be read and edited"
        return Finding("front end", "ok", told)
    if resident.desk.frontend.problem:
        return Finding("front end", "problem", resident.desk.frontend.problem)
    kind = "a Jupyter kernel" if has_kernel(resident.shell) else "a terminal"
    if can_ask(resident.shell):
        return Finding("front end", "ok", f"{kind}; risky calls ask below the cell")
    told = f"{kind} where nobody can be asked: risky calls need `approve all`"
    return Finding("front end", "ok", told)
