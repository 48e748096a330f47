"""Makes what a session is given: tools, prompt, context engine, all for one home and directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_nb.app.build import Place, build_engine, build_tools, is_embedded, known_tools
from hermes_nb.app.config import Settings
from hermes_nb.app.knowledge import Knowledge
from hermes_nb.app.session import Equipment, Session
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import Approver, ChatModel, ContextEngine, Keeper, SessionStore
from hermes_nb.core.tools import Risk, ToolContext, Toolset
from hermes_nb.memory.history import Origin
from hermes_nb.safety.guard import Guard


class Workshop:
    """Equips sessions.

    `session()` is the one that runs now, for tools that note where a call came from; `notebook()`
    its path or "". `own` are tools of a higher layer. `tell` shows a line to the user.
    """

    def __init__(  # noqa: PLR0913 - everything a session touches comes together here
        self,
        settings: Settings,
        *,
        root: Path,
        store: SessionStore,
        guard: Guard,
        approver: Approver,
        session: Callable[[], Session | None],
        tell: Callable[[str], None],
        notebook: Callable[[], str] = lambda: "",
        own: Toolset | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.settings = settings
        self.knowledge = Knowledge(settings, workdir=root, store=store, tell=tell)
        self._session = session
        self._notebook = notebook
        self._guard = guard
        self._place = Place(
            root=root,
            home=settings.home,
            guard=guard,
            approver=approver,
            own=own or Toolset(),
            keeper=keeper,
            hints=_RunningHints(session),
        )

    def equipment(
        self,
        model: ChatModel,
        *,
        auxiliary: ChatModel | None = None,
        chosen: Callable[[Toolset], Toolset] = lambda tools: tools,
    ) -> Equipment:
        """Return what a session with this model is given; `chosen` picks among the tools."""
        settings = self.settings
        known = known_tools(
            self.knowledge,
            model=auxiliary or model,
            session=self._session_id,
            origin=self._origin,
            spent=self._spent,
        )
        if is_embedded(model):  # it has a prompt of its own, and room for little else
            tools = chosen(build_tools(self._place.with_known(known), mark=False))
            return Equipment(model=model, tools=tools, max_requests=settings.max_requests)

        def engine(store: SessionStore, session_id: str) -> ContextEngine:
            return build_engine(
                settings,
                model=model,
                auxiliary=auxiliary,
                store=store,
                session_id=session_id,
                knowledge=self.knowledge,
                memory=self.quiet_tools(model),
            )

        self.knowledge.prepare()
        return Equipment(
            model=model,
            tools=chosen(build_tools(self._place.with_known(known))),
            max_requests=settings.max_requests,
            material=self.knowledge.material,
            enforce=settings.enforce,
            marked=True,
            tracker=self.knowledge.tracker,
            engine=engine,
            recalled=self.knowledge.recalled if settings.memory.provider else None,
            begin=self._guard.begin_turn,
        )

    def quiet_tools(self, model: ChatModel, *, source: str = "review") -> Toolset:
        """Return the memory and skill tools in a form that asks nobody, for work beside a turn."""

        def origin(context: ToolContext) -> Origin:
            return Origin(session=self._session_id(), turn=context.turn, source=source)

        tools = known_tools(
            self.knowledge, model=model, session=self._session_id, origin=origin
        ).only("memory", "skills")
        if self.settings.memory.write_approval:
            return Toolset(tool for tool in tools if tool.risk is Risk.READ)
        return tools

    def _spent(self, usage: Usage, _model: str) -> None:
        """Count what work beside the conversation used."""
        if (session := self._session()) is not None:
            session.spend(usage)

    def _session_id(self) -> str:
        session = self._session()
        return session.id if session is not None else ""

    def _origin(self, context: ToolContext) -> Origin:
        return Origin(session=self._session_id(), turn=context.turn, notebook=self._notebook())


class _RunningHints:
    """The hints of whichever session runs now."""

    def __init__(self, session: Callable[[], Session | None]) -> None:
        self._session = session

    def after(
        self,
        tool_name: str,
        arguments: Mapping[str, Any],
        *,
        earlier: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the hint that a call leads to, "" for none."""
        session = self._session()
        if session is None or session.hints is None:
            return ""
        return session.hints.after(tool_name, arguments, earlier=earlier)
