"""How a cell ends whose turn did not come to an answer: in one line, and as failed cells do."""

from __future__ import annotations

from hermes_nb.core.errors import HermesError


class TurnFailed(HermesError):  # noqa: N818 - what happened to the turn
    """The turn failed; its cell fails with it, so that a run of the whole notebook stops here."""


class Stopped(HermesError):  # noqa: N818 - what the user did
    """The user stopped the turn; the cell ends as interrupted cells do, in one line."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
