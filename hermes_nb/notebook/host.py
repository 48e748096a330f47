"""What a turn needs of the agent that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hermes_nb.agent.config import Settings
from hermes_nb.agent.runtime import Workshop
from hermes_nb.agent.session import Equipment, Session
from hermes_nb.agent.session_manager import Conversations
from hermes_nb.agent.turn import Turn
from hermes_nb.core.protocols import SessionStore, Variable
from hermes_nb.models.cassette import Deck
from hermes_nb.notebook.access import Desk
from hermes_nb.notebook.approval import Permission
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import View
from hermes_nb.notebook.models import ModelsInUse
from hermes_nb.notebook.tools_in_use import ToolsInUse
from hermes_nb.notebook.user_message import Briefing
from hermes_nb.safety.guard import Guard


class Host(Protocol):
    """The agent of one kernel, as its turns see it: `Resident` is one."""

    shell: Any
    guard: Guard
    deck: Deck
    models: ModelsInUse
    permission: Permission
    tools_in_use: ToolsInUse
    briefing: Briefing
    desk: Desk
    last: Transcript | None
    turn: Turn | None
    view: View | None
    unsent: list[str]

    @property
    def session(self) -> Session | None:
        """The session that the next turn goes on with."""
        ...

    @property
    def conversations(self) -> Conversations:
        """Which session this is, and the ways to others."""
        ...

    @property
    def workshop(self) -> Workshop:
        """What equips sessions."""
        ...

    @property
    def store(self) -> SessionStore:
        """The session store."""
        ...

    def settings(self, **options: object) -> Settings:
        """Return the settings as they are now; `options` that are not None come first."""
        ...

    def equipment(self, settings: Settings) -> Equipment:
        """Return what a session is given now."""
        ...

    def variables(self) -> Sequence[Variable]:
        """Return the user's variables."""
        ...

    def choose_model(self, name: str) -> None:
        """Use another model from the next turn on."""
        ...

    def new(self) -> None:
        """End the running session."""
        ...

    def note(self, markdown: str) -> None:
        """Show a line of ours."""
        ...

    def tell_what_was_learned(self, session: Session) -> None:
        """Say what the reviews since the last turn have saved."""
        ...
