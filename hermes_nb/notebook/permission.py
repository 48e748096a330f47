"""Who may raise the approval mode of a kernel: its user, not what runs under the mode.

A cell of a notebook that somebody else wrote can say `--approve all`. In a notebook that this home
has not seen, the user is asked once; where nobody can be, what started the process counts alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hermes_nb.agent.config import CEILING, MODES, STARTED, load_settings, within
from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.display.view import can_ask, has_kernel
from hermes_nb.notebook.values.kinds import Foreign
from hermes_nb.safety.guard import Guard, Mode
from hermes_nb.safety.trust import Trust
from hermes_nb.safety.visible import visible

VARIABLE = "HERMES_NB_APPROVE"
_LETS = {"edits": "change files and cells", "all": "run and change anything"}


class Permission:
    """What the cells of one kernel may choose; `began` is the mode that a configuration gave."""

    def __init__(
        self,
        shell: Foreign,
        guard: Guard,
        *,
        notebook: Callable[[], str],
        began: Callable[[], str],
        note: Callable[[str], None],
    ) -> None:
        self._shell = shell
        self._guard = guard
        self._notebook = notebook
        self._began = began
        self._note = note
        self._held = 0
        self._answers: dict[tuple[str, Mode], bool] = {}

    def check(self, deed: str = "change the approval mode") -> None:
        """Raise `ConfigError` while code that the agent runs is what asks."""
        if self._held:
            message = f"code that an agent runs cannot {deed}; the user can, in a cell"
            raise ConfigError(message)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run code for the agent: what it changes of the mode is as before when it is over."""
        mode, before = self._guard.mode, os.environ.get(VARIABLE)
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._guard.mode = mode
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before

    def granted(self, wanted: Mode) -> Mode:
        """Return the mode that a cell gets which wants this one; it may ask, once a notebook."""
        if CEILING is not None:
            if (lower := within(wanted)) != wanted:
                self._note(f"`{wanted}` is above what this kernel allows: `{lower}`.")
            return lower
        if wanted not in _LETS or not has_kernel(self._shell):
            return wanted  # what is typed into a terminal is the user's own
        environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        started = load_settings(
            overrides={"approve": self._began() or None},
            environ=environ | ({VARIABLE: STARTED} if STARTED else {}),
        )
        if within(wanted, started.approve) == wanted or self._agreed(wanted, Trust(started.home)):
            return wanted
        self._note(
            f"The approval mode stays `{started.approve}`: nobody allowed `{wanted}` for this "
            f"notebook. Set {VARIABLE} where the kernel is started, or answer yes in a notebook."
        )
        return started.approve

    def _agreed(self, wanted: Mode, trust: Trust) -> bool:
        """Say whether the user lets this notebook choose a mode; ask where that is not known."""
        notebook = self._notebook()
        above = MODES[MODES.index(wanted) :]
        if any(self._answers.get((notebook, mode)) for mode in above):
            return True
        if notebook and any(trust.accepts(notebook, _text(mode)) for mode in above):
            return True
        if (notebook, wanted) in self._answers or not can_ask(self._shell):
            return False
        question = (
            f"This cell wants to let Hermes {_LETS[wanted]} without asking (`{wanted}`), in "
            f"{visible(notebook) or 'this notebook'}. Allow that for this notebook? [y/N] "
        )
        yes = (ask_user(question) or "").lower() in ("y", "yes")
        self._answers[notebook, wanted] = yes
        if yes and notebook:
            trust.accept(notebook, _text(wanted))
        return yes


def _text(mode: Mode) -> str:
    return f"cells of this notebook may choose the approval mode {mode}"
