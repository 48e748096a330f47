"""The Chat tab: before the first turn, the model in use, what asks, and three prompts to try.

The page shows the conversation and the prompt field below it. A page fills the field when one of
the prompts is clicked; without a field, the click says where to write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_nb.agent.settings.sources import within
from hermes_nb.core.events import TurnEnded, TurnStarted
from hermes_nb.core.protocols import Variable
from hermes_nb.notebook.panels.style import dim, shown
from hermes_nb.notebook.panels.widgets import Act, Buttons, Tab, TabContext, write
from hermes_nb.notebook.variables import variables_of

GENERAL = (
    "What is in this folder?",
    "Add a cell that plots a sine wave",
    "What can you do in this notebook?",
)
"""Prompts for a kernel that has no variables."""
LONGEST = 30
"""Characters of a variable's name that a prompt may contain."""
WHAT_ASKS = {
    "ask": "Hermes asks you before it runs code, or changes a cell or a file.",
    "edits": "Hermes changes cells and files without asking. It asks you before it runs code.",
    "all": "Hermes runs code and changes cells and files without asking.",
    "never": "Hermes doesn't run code, and doesn't change cells or files.",
}
"""What each approval mode means, in one line."""
CHANGE = "Change it with <code>%hermes model NAME</code>."
KEYLESS = "No provider is set up: <code>%hermes key</code> saves an API key."


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The contents of the card."""

    model: str
    """The model of the next turn, or "" if it is chosen then."""
    keyless: bool
    """Whether no provider is set up."""
    asks: str
    """What requires approval."""
    prompts: tuple[str, ...]
    """Prompts to try."""


class ChatTab(Tab):
    """A card until the session's first turn, and nothing afterwards."""

    title = "Chat"
    events = (TurnStarted, TurnEnded)

    def __init__(self, place: TabContext) -> None:
        super().__init__(place)
        kit = place.kit
        self._about = kit.markup()
        self._try = kit.markup(dim("Prompts to try:"))
        self._prompts = Buttons(kit, "hermes-example")
        self._card = kit.box(css="hermes-card")

    def read(self) -> Welcome | None:
        """Return the contents of the card, or None after the session's first turn."""
        agent = self.place.agent
        if agent.hub.running or (agent.session is not None and agent.session.agent.turns):
            return None
        settings = agent.settings()
        model = agent.models.name or settings.endpoint.model
        return Welcome(
            model=model,
            keyless=not (agent.models.given or settings.endpoint.named),
            asks=WHAT_ASKS[within(settings.approve)],
            prompts=prompts(variables_of(agent.shell)),
        )

    def show(self, found: Welcome | None) -> None:
        """Show the card, or remove it."""
        if found is None:
            write(self.widget, (), "children")
            return
        model = f"<b>{shown(found.model, 60)}</b>" if found.model else "chosen at the first turn"
        how = KEYLESS if found.keyless else CHANGE
        write(self._about, f"<p>Model: {model}<br>{dim(how)}</p><p>{found.asks}</p>")
        acts = [Act(each, "write this prompt", self._written) for each in found.prompts]
        buttons = self._prompts.show("", acts)
        write(self._card, (self._about, self._try, *buttons), "children")
        write(self.widget, (self._card,), "children")

    @staticmethod
    def _written() -> str:
        return "Write it into a cell, below a line with %%hermes."


def prompts(variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return three prompts, about the newest variables if there are any."""
    fit = [each for each in reversed(variables) if len(each.name) <= LONGEST]
    tables = [each.name for each in fit if each.columns]
    sized = [each.name for each in fit if each.shape and not each.columns]
    found = [
        *(f"What is in @{name}?" for name in tables[:1]),
        *(f"Plot what is most interesting in @{name}" for name in tables[:1]),
        *(f"How do @{tables[0]} and @{name} fit together?" for name in tables[1:2]),
        *(f"Does @{name} have missing or odd values?" for name in tables[:1]),
        *(f"What is in @{name}?" for name in sized[:2]),
    ]
    return (*found, *GENERAL)[:3]
