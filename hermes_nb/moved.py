"""Redirect the import paths of earlier versions to the modules that replaced them.

Fan-out tables, start-up files, pickled tasks and third-party code still use these paths. A path is
redirected only if Python finds no module with that name. The old name is then bound to the new
module, so that a class is the same object under both names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import InspectLoader, Loader

PACKAGES = ("hermes_nb.app", "hermes_nb.app.maps", "hermes_nb.gateway")
"""Former packages that can still be imported, but contain nothing."""
MOVED = {
    "hermes_nb.agent.config": "hermes_nb.agent.settings.config",
    "hermes_nb.agent.environment": "hermes_nb.extras.training.environment",
    "hermes_nb.agent.executors": "hermes_nb.agent.fanout.executors",
    "hermes_nb.app.approvals": "hermes_nb.agent.approvals",
    "hermes_nb.app.maps.executors": "hermes_nb.agent.fanout.executors",
    # Unpickled by a cluster's engines.
    "hermes_nb.app.maps.task": "hermes_nb.agent.fanout.executors",
    "hermes_nb.gateway.core": "hermes_nb.extras.gateway.core",
    "hermes_nb.gateway.service": "hermes_nb.extras.gateway.service",
    "hermes_nb.models.weights": "hermes_nb.extras.local.fetch",
}
"""Old paths used in documentation, start-up files or other processes, and their new paths."""


class OldPaths:
    """An import finder and loader that maps a former module's path to its replacement.

    It has no base class, because importing `importlib.abc` takes longer than everything else.
    """

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python creates the module."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - part of the protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in MOVED and fullname not in PACKAGES:
            return None
        return ModuleSpec(fullname, cast("Loader", self), is_package=fullname in PACKAGES)

    def get_code(self, name: str) -> CodeType | None:
        """Return the code that `python -m` runs for an old name."""
        from importlib.util import find_spec

        spec = find_spec(MOVED[name])
        return cast("InspectLoader", spec.loader).get_code(spec.name) if spec else None

    def exec_module(self, module: ModuleType) -> None:
        """Bind the old name to the new module in `sys.modules`.

        Raises:
            ModuleNotFoundError: The new module isn't part of this installation.
        """
        if (new := MOVED.get(module.__name__)) is None:
            return
        try:
            sys.modules[module.__name__] = import_module(new)
        except ModuleNotFoundError as error:
            if not new.startswith(f"{error.name}"):
                raise
            message = f"{module.__name__} is now {new}, which this installation does not have"
            raise ModuleNotFoundError(message, name=error.name) from error


def install() -> None:
    """Register the finder for modules that Python can't find; further calls do nothing."""
    if not any(isinstance(each, OldPaths) for each in sys.meta_path):
        sys.meta_path.append(OldPaths())
