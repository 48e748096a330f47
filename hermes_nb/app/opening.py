"""A conversation outside of a kernel, from settings to a session, and everything it takes closed.

Scripts (`Hermes`) and the command line open theirs here. Nothing is built, looked up or created
before `session` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from hermes_nb.app.build import open_store
from hermes_nb.app.config import Settings
from hermes_nb.app.equipment import Identity
from hermes_nb.app.models import build_auxiliary, build_deck, build_model
from hermes_nb.app.session import Session
from hermes_nb.app.workshop import Workshop
from hermes_nb.core.calls import in_thread
from hermes_nb.core.protocols import Approver, ChatModel, SessionStore, StoredSession
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.safety.guard import Guard


class Opening:
    """A session that is begun, or gone on with, when it is first asked for.

    `source` says who asks, as in `Identity`. `model` and `auxiliary` take the place of those that
    the settings name. `own` are tools of the caller's, and `chosen` picks among all. `joined`
    returns the stored session to go on with, None for a new one. `tell` shows a line to the user.
    """

    def __init__(  # noqa: PLR0913 - what the settings do not say, all of it optional
        self,
        settings: Settings,
        *,
        approver: Approver,
        tell: Callable[[str], None],
        source: str,
        root: Path | None = None,
        model: ChatModel | None = None,
        auxiliary: ChatModel | None = None,
        own: Iterable[Tool] = (),
        chosen: Callable[[Toolset], Toolset] = lambda tools: tools,
        joined: Callable[[SessionStore], StoredSession | None] = lambda _: None,
    ) -> None:
        self.current: Session | None = None
        self._settings = settings
        self._approver = approver
        self._tell = tell
        self._source = source
        self._root = root
        self._model = model
        self._auxiliary = auxiliary
        self._own = Toolset(own)
        self._chosen = chosen
        self._joined = joined
        self._store: SessionStore | None = None

    @property
    def begun(self) -> bool:
        """Whether there is anything to close."""
        return self._store is not None

    def session(self, title: str = "") -> Session:
        """Return the session, made on the first call; raise `ConfigError` where that cannot be."""
        if self.current is None:
            self.current = self._opened(title)
        return self.current

    def _opened(self, title: str) -> Session:
        settings = self._settings
        if self._store is None:
            self._store = open_store(settings, self._tell)
        deck = build_deck(
            lambda: settings, personal=lambda: self.current.personal if self.current else ()
        )
        if self._model is None:
            self._model = build_model(settings, deck=deck)
        if self._auxiliary is None:
            self._auxiliary = build_auxiliary(settings, deck=deck)
        workshop = Workshop(
            settings,
            root=self._root or Path.cwd(),
            store=self._store,
            guard=Guard(
                settings.approve,
                required=settings.sandbox.required,
                sandboxed=settings.sandbox.use != "off",
            ),
            approver=self._approver,
            session=lambda: self.current,
            own=self._own,
            tell=self._tell,
        )
        equipment = replace(
            workshop.equipment(self._model, auxiliary=self._auxiliary, chosen=self._chosen),
            budget=settings.budget,
        )
        stored = self._joined(self._store)
        if stored is not None:
            return Session.resume(stored, store=self._store, equipment=equipment, warn=self._tell)
        return Session.start(
            store=self._store,
            equipment=equipment,
            identity=Identity(source=self._source, title=title),
            warn=self._tell,
        )

    async def aclose(self) -> None:
        """Leave the session and close models and store; the session can be resumed later."""
        async with AsyncExitStack() as ending:  # from the last to the first, whatever fails
            if self._store is not None:
                ending.callback(self._store.close)
            for model in (self._auxiliary, self._model):
                if model is not None:
                    ending.push_async_callback(model.aclose)
            if self.current is not None:
                await in_thread(self.current.leave)
