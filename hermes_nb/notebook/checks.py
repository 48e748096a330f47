"""`%hermes doctor`: what a turn needs, whether it is there, and what to do if it is not."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from pathlib import Path

import hermes_nb
from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.resident import Resident
from hermes_nb.notebook.view import can_ask, has_kernel
from hermes_nb.notebook.wording import facts


async def doctor(resident: Resident, _words: str) -> str:
    """Check what a turn needs and say what to do about what is missing."""
    checks = (_check_versions, _check_model, _check_home, _check_front_end, _check_sandbox)
    rows = []
    for check in checks:
        try:
            row = check(resident)
            rows.append(await row if inspect.isawaitable(row) else row)
        except HermesError as error:
            rows.append((check.__name__.removeprefix("_check_"), f"✗ {error}"))
    return facts(rows)


def _check_versions(_resident: Resident) -> tuple[str, str]:
    import IPython

    python = ".".join(map(str, sys.version_info[:3]))
    return (
        "versions",
        f"✓ hermes_nb {hermes_nb.__version__}, IPython {IPython.__version__}, {python}",
    )


def _check_model(resident: Resident) -> tuple[str, str]:
    from hermes_nb.app.build import build_model, embedded_notice

    found = build_model(resident.settings(), variables=resident.variables)
    if embedded_notice(found) is None:
        return "model", f"✓ {found.name}"
    from hermes_nb.models.weights import locate

    here = "its weights are here" if locate() else "its weights will be fetched, after a question"
    return "model", f"✓ the built-in {found.name}; {here}. For real work set HERMES_NB_MODEL"


def _check_home(resident: Resident) -> tuple[str, str]:
    home = resident.settings().home
    nearest = next(path for path in (home, *home.parents) if path.exists())
    if _writable(nearest):
        return "home", f"✓ {home}" + ("" if home.exists() else ", made by the first turn")
    return "home", f"✗ {nearest} cannot be written; set HERMES_HOME to a folder of yours"


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


async def _check_front_end(resident: Resident) -> tuple[str, str]:
    page = await resident.desk.frontend.probe()
    if page is not None:
        return "front end", f"✓ {page.app} shows {page.path}; cells can be read and edited"
    if resident.desk.frontend.problem:
        return "front end", f"✗ {resident.desk.frontend.problem}"
    kind = "a Jupyter kernel" if has_kernel(resident.shell) else "a terminal"
    if can_ask(resident.shell):
        return "front end", f"✓ {kind}; risky calls ask below the cell"
    return "front end", f"✓ {kind} where nobody can be asked: risky calls need `approve all`"


def _check_sandbox(_resident: Resident) -> tuple[str, str]:
    slow = "" if shutil.which("rg") else "; ripgrep is not installed, so searching is slower"
    return "sandbox", f"– commands run unconfined, as you: approve them with care{slow}"
