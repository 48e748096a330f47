"""`jupyter hermes doctor`: the checks of `%hermes doctor`, and those of the installation."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

from hermes_nb.app.config import Settings, load_settings
from hermes_nb.cli.enabling import enabled
from hermes_nb.cli.ending import FAILED, OK
from hermes_nb.cli.places import place_for
from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.commands import installed
from hermes_nb.notebook.commands.endpoints import endpoints
from hermes_nb.notebook.commands.installed import Finding, look
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible


def run(arguments: argparse.Namespace) -> int:
    """Check, show the findings, and return 1 if one of them is a problem."""
    found = findings(offline=arguments.offline)
    problems = [each for each in found if each.state == "problem"]
    if arguments.json:
        checks = [
            {"name": each.name, "state": each.state, "text": redact(each.text)} for each in found
        ]
        print(json.dumps({"ok": not problems, "checks": checks}, indent=2, ensure_ascii=False))
    else:
        _show(found)
    return FAILED if problems else OK


def findings(*, offline: bool = False) -> list[Finding]:
    """Return what all the checks found; a broken configuration leaves out those that need it.

    With `offline`, servers that are named are not asked whether they take the key.
    """
    found = look([("versions", installed.versions)])
    try:
        settings = load_settings()
    except HermesError as error:
        found.append(Finding("settings", "problem", str(error)))
    else:
        found += look([("settings", lambda: _settings(settings)), *_of(settings)])
        found += [] if offline else endpoints(settings)
    return found + look(
        [
            ("weights", installed.weights),
            ("labextension", installed.labextension),
            ("kernel", _kernel),
            ("without %load_ext", _enabled),
            ("sandbox", installed.sandbox),
        ]
    )


def _of(settings: Settings) -> list[tuple[str, installed.Check]]:
    checks = (installed.model, installed.key, installed.home, installed.sessions)
    return [(check.__name__, partial(check, settings)) for check in checks]


def _settings(settings: Settings) -> Finding:
    told = "; ".join(f"{name}: {source}" for name, source in settings.sources.items())
    return Finding("settings", "ok", told or "defaults")


def _kernel() -> Finding:
    """Return whether Jupyter finds a kernel in this environment."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        told = (
            f"there is no kernelspec python3: `{sys.executable} -m ipykernel install --sys-prefix`"
        )
        return Finding("kernel", "problem", told)
    python = spec.argv[0] if spec.argv else ""
    if python in ("python", "python3", sys.executable):
        return Finding("kernel", "ok", f"python3 ({spec.resource_dir})")
    told = f"python3 ({spec.resource_dir}) runs {python}, which needs hermes_nb too"
    return Finding("kernel", "note", told)


def _enabled() -> Finding:
    here = [level for level in ("user", "sys-prefix", "system") if enabled(place_for(level))]
    if here:
        return Finding("without %load_ext", "ok", f"%%hermes works at once ({', '.join(here)})")
    told = "notebooks begin with `%load_ext hermes_nb`; `jupyter hermes enable` makes that needless"
    return Finding("without %load_ext", "note", told)


def _show(found: Sequence[Finding]) -> None:
    width = max(len(each.name) for each in found)
    for each in found:
        print(f"{each.name:<{width}}  {visible(redact(each.marked))}")
