"""Import paths of earlier versions, each with the path that took its place.

Tables of maps, start-up files, pickled tasks and other people's code name modules by these paths.
One is looked up only where Python finds no module of that name, and what is imported is the module
that took its place, so that a class is the same one by either path.
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
"""Packages of which only the names are left."""
MOVED = {
    "hermes_nb.agent.config": "hermes_nb.agent.settings.config",
    "hermes_nb.agent.environment": "hermes_nb.extras.training.environment",
    "hermes_nb.agent.executors": "hermes_nb.agent.fanout.executors",
    "hermes_nb.app.approvals": "hermes_nb.agent.approvals",
    "hermes_nb.app.maps.executors": "hermes_nb.agent.fanout.executors",
    # What engines of a cluster unpickle.
    "hermes_nb.app.maps.task": "hermes_nb.agent.fanout.executors",
    "hermes_nb.gateway.core": "hermes_nb.extras.gateway.core",
    "hermes_nb.gateway.service": "hermes_nb.extras.gateway.service",
    "hermes_nb.models.weights": "hermes_nb.extras.local.fetch",
}
"""What documentation, start-up files or other processes have named."""


class OldPaths:
    """A finder and loader that imports what a module of an earlier version became.

    It has no base class: `importlib.abc` alone takes longer than all that is done here.
    """

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make a module."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in MOVED and fullname not in PACKAGES:
            return None
        return ModuleSpec(fullname, cast("Loader", self), is_package=fullname in PACKAGES)

    def get_code(self, name: str) -> CodeType | None:
        """Return what `python -m` runs of an old name."""
        from importlib.util import find_spec

        spec = find_spec(MOVED[name])
        return cast("InspectLoader", spec.loader).get_code(spec.name) if spec else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the new module in the place of the old name, where Python looks for it afterwards.

        Raises `ImportError` that says what is missing where the room of an extra was removed.
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
    """Have Python ask here when it finds no module of a name."""
    if not any(isinstance(each, OldPaths) for each in sys.meta_path):
        sys.meta_path.append(OldPaths())
