"""Hermes, a self-improving agent that lives inside the Jupyter kernel.

`%load_ext hermes_nb` adds the magic `%%hermes`; scripts use the class `Hermes`. Importing this
package imports neither a model SDK nor Jupyter, and writes no files.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hermes_nb import moved

if TYPE_CHECKING:
    from hermes_nb.agent.api import Hermes, Turn
    from hermes_nb.notebook.magics import last_turn, use_hooks, use_model, use_tools
    from hermes_nb.notebook.shell import Shell

__version__ = "0.3.0"
__all__ = [
    "Hermes",
    "Turn",
    "last_turn",
    "load_ipython_extension",
    "unload_ipython_extension",
    "use_hooks",
    "use_model",
    "use_tools",
]

# Without a handler, logging would print warnings into cell outputs. The turn reports errors itself.
logging.getLogger(__name__).addHandler(logging.NullHandler())
moved.install()


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the types are imported above
    if name in ("Hermes", "Turn"):
        from hermes_nb.agent import api

        return getattr(api, name)
    if name in ("last_turn", "use_hooks", "use_model", "use_tools"):
        from hermes_nb.notebook import magics

        return getattr(magics, name)
    raise AttributeError(f"module 'hermes_nb' has no attribute {name!r}")


def load_ipython_extension(shell: Shell) -> None:
    """Add the magics; called by `%load_ext hermes_nb` and by the first use of a lazy magic."""
    from hermes_nb.notebook.lazy import announce, settle_running_call
    from hermes_nb.notebook.magics import load
    from hermes_nb.notebook.shell import hermes_magics

    new = hermes_magics(shell) is None
    load(shell)
    if new:
        settle_running_call(shell)
        announce(shell)


def unload_ipython_extension(shell: Shell) -> None:
    """Remove the magics; called by `%unload_ext hermes_nb`."""
    from hermes_nb.notebook.magics import unload

    unload(shell)
