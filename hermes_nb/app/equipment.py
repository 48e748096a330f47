"""What a conversation is given, and the system prompt that is made of it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hermes_nb.app.groups import BudgetSettings
from hermes_nb.app.jobs import Jobs
from hermes_nb.core.loop import MAX_REQUESTS
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import ChatModel, ContextEngine, SessionStore
from hermes_nb.core.tools import Toolset
from hermes_nb.prompt.builder import Material, Occasion, Platform, Prompt, build
from hermes_nb.prompt.hints import HintTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Where a conversation takes place: `notebook` is an absolute path or "".

    `parent` is the session that it was made from, or "".
    """

    source: str = "script"
    notebook: str = ""
    title: str = ""
    parent: str = ""

    @property
    def platform(self) -> Platform:
        """Where its answers are read."""
        return "notebook" if self.source == "notebook" else "terminal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a session is given.

    `material` is asked for the texts of the prompt whenever one is built. `enforce` is as in
    `Occasion`. `marked` says whether the tools mark untrusted results. `tracker(seen)` makes the
    hints of one conversation, and `engine(store, session_id)` its context engine. `recalled`
    returns what an external memory has to say about a prompt; it may block. `begin()` is called
    when a turn begins, `leave(messages)` when the session is left with these. `budget` is what the
    session, and its notebook, may spend. `jobs` lists what runs beside the conversation.
    """

    model: ChatModel
    tools: Toolset
    max_requests: int = MAX_REQUESTS
    material: Callable[[Toolset], Material] = lambda _: Material()
    enforce: bool | None = None
    marked: bool = False
    tracker: Callable[[Sequence[str]], HintTracker] | None = None
    engine: Callable[[SessionStore, str], ContextEngine | None] = lambda *_: None
    recalled: Callable[[str], str] | None = None
    begin: Callable[[], None] = lambda: None
    leave: Callable[[Sequence[Message]], None] = lambda _: None
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    jobs: Jobs = field(default_factory=Jobs)


def compose(equipment: Equipment, platform: Platform, session_id: str) -> Prompt:
    """Return the system prompt as it would be built now."""
    tools = equipment.tools
    occasion = Occasion(
        tools=tools,
        model=equipment.model.name,
        session_id=session_id,
        date=datetime.datetime.now().astimezone().date().isoformat(),
        platform=platform,
        enforce=equipment.enforce,
        marked=equipment.marked,
    )
    return build(equipment.material(tools), occasion)
