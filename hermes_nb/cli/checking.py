"""`jupyter hermes doctor`: the checks of `%hermes doctor`, and those of the installation."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from hermes_nb.app.config import load_settings
from hermes_nb.cli.enabling import enabled
from hermes_nb.cli.ending import FAILED, OK
from hermes_nb.cli.places import place_for
from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.commands import doctor as checks
from hermes_nb.notebook.commands.doctor import Finding, look
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
    found = look({"versions": checks.versions})
    try:
        settings = load_settings()
    except HermesError as error:
        found.append(Finding("problem", str(error), "settings"))
    else:
        told = "; ".join(f"{name}: {source}" for name, source in settings.sources.items())
        found.append(Finding("ok", told or "defaults", "settings"))
        found += look(
            {
                "model": lambda: checks.model(settings),
                "key": lambda: checks.key(settings),
                "home": lambda: checks.home(settings),
                "sessions": lambda: checks.sessions(settings),
                "answer": lambda: [] if offline else checks.endpoints(settings),
            }
        )
    return found + look(
        {
            "weights": checks.weights,
            "labextension": checks.labextension,
            "kernel": _kernel,
            "without %load_ext": _enabled,
            "sandbox": checks.sandbox,
        }
    )


def _kernel() -> Finding:
    """Return whether Jupyter finds a kernel in this environment."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        told = (
            f"there is no kernelspec python3: `{sys.executable} -m ipykernel install --sys-prefix`"
        )
        return Finding("problem", told)
    python = spec.argv[0] if spec.argv else ""
    if python in ("python", "python3", sys.executable):
        return Finding("ok", f"python3 ({spec.resource_dir})")
    told = f"python3 ({spec.resource_dir}) runs {python}, which needs hermes_nb too"
    return Finding("note", told)


def _enabled() -> Finding:
    here = [level for level in ("user", "sys-prefix", "system") if enabled(place_for(level))]
    if here:
        return Finding("ok", f"%%hermes works at once ({', '.join(here)})")
    told = "notebooks begin with `%load_ext hermes_nb`; `jupyter hermes enable` makes that needless"
    return Finding("note", told)


def _show(found: Sequence[Finding]) -> None:
    width = max(len(each.name) for each in found)
    for each in found:
        print(f"{each.name:<{width}}  {visible(redact(each.marked))}")
