"""One conversation: an agent with its rows in the store, started fresh or resumed."""

from __future__ import annotations

import datetime
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.prompt_sources import PromptSources, background
from hermes_nb.agent.session.recorder import Recorder, recorder_of
from hermes_nb.agent.session.usage import standing_budgets, together
from hermes_nb.agent.settings.config import BudgetSettings
from hermes_nb.context.boundaries import is_ours
from hermes_nb.context.policy import overdue
from hermes_nb.core.budget import Budget
from hermes_nb.core.conversation import Preface
from hermes_nb.core.errors import ConfigError, SessionBusy, StoreError
from hermes_nb.core.events import (
    ChildFinished,
    ContextCompressed,
    Event,
    MessageAdded,
    UsageReported,
)
from hermes_nb.core.loop import BUSY, MAX_REQUESTS, Agent, is_prompt
from hermes_nb.core.messages import Message, Text, Usage
from hermes_nb.core.protocols import (
    ChatModel,
    ContextEngine,
    Effort,
    EventSink,
    SessionStore,
    StoredMessage,
    StoredSession,
)
from hermes_nb.core.text import number_of
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place, Toolset
from hermes_nb.memory.sessions import new_session_id
from hermes_nb.prompt.builder import Platform, Prompt, PromptContext, PromptTexts, build
from hermes_nb.safety.administrator import NONE, Policy
from hermes_nb.safety.provenance import accepted, outside
from hermes_nb.safety.redact import redact, without_secrets
from hermes_nb.tools.wrappers import with_context, with_hints

InView = Callable[[], Sequence[Message]]
CHILD, REVIEW = "child", "review"
"""Sources of sessions that were made from another one."""


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
        known: dict[str, Platform] = {"notebook": "notebook", "chat": "chat"}
        return known.get(self.source, "terminal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What a session is given.

    Its prompt is made of the `sources`, or of fixed `texts` where there are none. `enforce` is as
    in `PromptContext`, `marked` says whether the tools mark untrusted results. `choose` returns the
    tools of other names than those that it has by itself. `budget` is what the session, and its
    notebook, may spend. `preface` goes with each request. `policy` is the administrator's. `jobs`
    lists what runs beside the conversation. `engine` makes the session's engine: of its store, its
    place, and what returns the conversation that is in view. `watched` has the calls of tools
    recorded, for a source as in `Identity`; `sinks` makes what else listens to its agent, by the
    ids of session and parent.
    """

    model: ChatModel
    tools: Toolset
    max_requests: int = MAX_REQUESTS
    sources: PromptSources | None = None
    texts: PromptTexts = field(default_factory=PromptTexts)
    choose: Callable[[Sequence[str]], Toolset] = lambda _: Toolset()
    enforce: bool | None = None
    marked: bool = False
    engine: Callable[[SessionStore, Place, InView], ContextEngine | None] = lambda *_: None
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    jobs: Jobs = field(default_factory=Jobs)
    preface: Preface = field(default_factory=Preface)
    policy: Policy = NONE
    watched: Callable[[Toolset, str], Toolset] = lambda tools, _: tools
    sinks: Callable[[Agent, str, str], Sequence[EventSink]] = lambda *_: ()


def compose(spec: SessionSpec, platform: Platform, session_id: str) -> Prompt:
    """Return the system prompt as it would be built now."""
    tools = spec.tools
    occasion = PromptContext(
        tools=tools,
        model=spec.model.name,
        session_id=session_id,
        date=datetime.datetime.now().astimezone().date().isoformat(),
        platform=platform,
        enforce=spec.enforce,
        marked=spec.marked,
    )
    return build(spec.sources.material(tools) if spec.sources else spec.texts, occasion)


PERSONAL = frozenset({"identity", "memory provider", "system message", "memory", "user", "skills"})


class Session:
    """A conversation that outlives the kernel.

    Make one with `start` or `resume`. `usage` sums what this process sent, `by_job` by what for and
    by model; the store holds what the session used in all. `prompt` is the system prompt with its
    layers, `hints` what it has been told about subdirectories.
    """

    def __init__(
        self,
        *,
        session_id: str,
        agent: Agent,
        store: SessionStore,
        recorder: Recorder,
        prompt: Prompt,
        identity: Identity,
        spec: SessionSpec,
    ) -> None:
        self.id = session_id
        self.agent = agent
        self.store = store
        self.prompt = prompt
        agent.background = background(prompt, spec.sources)
        self.usage = Usage()
        self.by_job: dict[tuple[str, str], Usage] = {}
        self.compressions: list[ContextCompressed] = []
        self.hints = spec.sources.tracker(agent.messages) if spec.sources else None
        self._identity = identity
        self._spec = spec
        self._budgets: tuple[Budget, ...] = ()
        self._resumed = bool(agent.messages)
        self._taking = False
        self._begun = False
        self._offered: tuple[Toolset, ContextEngine | None] | None = None
        agent.sinks[:0] = [recorder]
        agent.sinks += [self._fold, *spec.sinks(agent, session_id, identity.parent)]
        recorder.moved = self._moved
        agent.rebuild = self._rebuilt
        self._engage()

    @classmethod
    def start(
        cls,
        *,
        store: SessionStore,
        spec: SessionSpec,
        identity: Identity,
        warn: Callable[[str], None],
    ) -> Session:
        """Begin a conversation; it waits in memory for as long as the store cannot be written."""
        session_id = new_session_id()
        prompt = compose(spec, identity.platform, session_id)
        recorder = Recorder(store, session_id, warn)
        recorder.begin(
            title=identity.title,
            source=identity.source,
            notebook=identity.notebook,
            model=spec.model.name,
            system_prompt=prompt.text,
            parent=identity.parent,
        )
        agent = Agent(
            spec.model,
            spec.tools,
            system=prompt.text,
            max_requests=spec.max_requests,
        )
        return cls(
            session_id=session_id,
            agent=agent,
            store=store,
            recorder=recorder,
            prompt=prompt,
            identity=identity,
            spec=spec,
        )

    @classmethod
    def resume(
        cls,
        stored: StoredSession,
        *,
        store: SessionStore,
        spec: SessionSpec,
        warn: Callable[[str], None],
    ) -> Session:
        """Go on with a stored conversation, its system prompt byte for byte.

        What a killed process left open at the end is closed, and the closing rows are stored too,
        so that every later resume sends the same bytes.
        """
        recorder = recorder_of(store, stored.id, warn)
        rows = list(recorder.conversation)
        agent = Agent(
            spec.model,
            spec.tools,
            system=stored.system_prompt,
            messages=rows,
            max_requests=spec.max_requests,
        )
        if agent.messages[: len(rows)] == rows:
            for message in agent.messages[len(rows) :]:
                recorder(MessageAdded(message))
        identity = Identity(source=stored.source, notebook=stored.notebook, title=stored.title)
        now = compose(spec, identity.platform, stored.id)
        return cls(
            session_id=stored.id,
            agent=agent,
            store=store,
            recorder=recorder,
            prompt=Prompt.recognised(stored.system_prompt, now),
            identity=identity,
            spec=spec,
        )

    async def turn(
        self,
        prompt: str | Message,
        *,
        sinks: Iterable[EventSink] = (),
        max_requests: int | None = None,
        budgets: Iterable[Budget] = (),
        effort: Effort = "",
        place: Place | None = None,
        preface: Preface | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Take a turn; `sinks` see its events after the session's own.

        A `preface` goes with its requests, behind that of the session. It keeps to the `budgets`
        given and to those of the session and its notebook. It is taken at a `place`, by default the
        session's own, in whose session it is where none is named. A resumed conversation that fills
        the window is compressed first, which only sinks see. Raises `SessionBusy`, and leaves the
        turn that is under way alone, and `ConfigError` for more requests than the policy allows.
        """
        self.check_idle()
        self._spec.policy.check_most("max_requests", max_requests, self.agent.max_requests)
        self._taking = True
        extra, sources = [*sinks], self._spec.sources
        if sources is not None and sources.settings.memory.provider:
            extra.append(sources.hear)
        if sources is not None and not self._begun:
            sources.prepare()
        self._begun = True
        self.agent.sinks += extra
        place = place or self.place
        self.agent.place = place if place.session else replace(place, session=self.id)
        try:
            limited = self._spec.budget.session or self._spec.budget.notebook
            self._budgets = (*budgets, *(await in_thread(self.standing) if limited else ()))
            self.agent.preface = self._spec.preface + (preface or Preface())
            await self._clear_up()
            message = await self._with_recall(prompt)
            self.agent.effort = effort
            run = self.agent.run(message, max_requests=max_requests, budgets=self._budgets)
            async with aclosing(run) as events:
                async for event in events:
                    yield event
        finally:
            self._taking = False
            self._budgets = ()
            self.agent.preface = self._spec.preface
            self.agent.sinks = [sink for sink in self.agent.sinks if sink not in extra]

    def check_idle(self) -> None:
        """Raise `SessionBusy` while a turn is being taken, or got ready."""
        if self._taking:
            raise SessionBusy(BUSY)
        self.agent.check_idle()

    @property
    def personal(self) -> tuple[str, ...]:
        """The layers of the prompt that come from the user's home; they are no part of a story."""
        return tuple(layer.text for layer in self.prompt.layers if layer.name in PERSONAL)

    @property
    def place(self) -> Place:
        """Where the conversation takes place."""
        return Place(session=self.id, notebook=self._identity.notebook)

    @property
    def jobs(self) -> Jobs:
        """What runs beside the conversation just now."""
        return self._spec.jobs

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""
        return self.agent.messages

    def adopt(self, spec: SessionSpec) -> None:
        """Go on with another model or other tools; the prompt stays. Raises `SessionBusy`."""
        self.check_idle()
        changed = spec.model is not self._spec.model
        self._spec = spec
        self.agent.model = spec.model
        self.agent.max_requests = spec.max_requests
        if changed:
            if self.agent.engine is not None:
                self.agent.engine.session_ended()
            self._engage()

    def use(self, tools: Toolset) -> None:
        """Use these tools from the next turn on, with hints, and those of the context engine."""
        engine = self.agent.engine
        if self._offered == (tools, engine):  # what goes by identity, as schemas do, goes on
            return
        self._offered = tools, engine
        sources, hinted = self._spec.sources, tools
        if self.hints is not None and sources is not None:
            quoted = partial(sources.marks.quoted, root=sources.workdir)
            hinted = with_hints(tools, self.hints, quoted)
        self.agent.tools = self._spec.watched(
            with_context(hinted, engine, self._spec.policy), self._identity.source
        )

    def reload(self) -> Prompt:
        """Build the system prompt anew, from files and memory as they are now, and keep it."""
        self.check_idle()
        self.prompt = compose(self._spec, self._identity.platform, self.id)
        self.agent.system = self.prompt.text
        self.agent.background = background(self.prompt, self._spec.sources)
        try:
            stored = [without_secrets(message) for message in self.agent.messages]
            self.store.replace(self.id, stored, system_prompt=redact(self.prompt.text))
        except StoreError as error:
            message = f"the new prompt holds for this kernel, but is not stored: {error}"
            raise ConfigError(message) from error
        return self.prompt

    async def compress(self, focus: str = "") -> ContextCompressed | None:
        """Make the conversation shorter now; None when nothing could be gained."""
        self.check_idle()
        return await self.agent.compress(focus)

    def restore(self) -> ContextCompressed:
        """Undo the last compression; raise `ConfigError` when there is none to undo."""
        self.check_idle()  # before the store is changed
        messages = self.store.restore(self.id)
        if messages is None:
            raise ConfigError("there is no compression to undo in this session")
        return self.agent.restore(messages)

    def asked(self, turns: int = 1) -> StoredMessage:
        """Return the prompt that the last so many turns began with, as it is stored.

        Raises `ConfigError` where the conversation has not so many in view, `SessionBusy`.
        """
        self.check_idle()
        rows = self.store.rows(self.id)
        found = [row for row in rows if row.state == "active" and _is_the_users(row.message)]
        if not 0 < turns <= len(found):
            there = number_of(len(found), "turn")
            raise ConfigError(f"{there} of this session can be taken back, not {turns}")
        return found[-turns]

    def rewind(self, turns: int = 1) -> Message:
        """Take the last turns out of the conversation and return the prompt of the first of them.

        Their rows stay, out of searches. Raises as `asked` does.
        """
        stored = self.asked(turns).message
        starts = [i for i, each in enumerate(self.messages) if _is_the_users(each)]
        prompt = self.messages[starts[-turns]] if len(starts) >= turns else None
        if prompt is None or without_secrets(prompt) != stored:
            raise ConfigError("the session is not being saved now, so no turn can be taken back")
        self.agent.restore(self.messages[: starts[-turns]], phase="rewound")
        self.agent.turns -= turns
        return prompt

    def accept_outside(self) -> str:
        """Count text from outside as the workspace's from now on; return where it stood, or "".

        Raises `SessionBusy`.
        """
        where = outside(self.messages)
        if where:
            self.agent.restore(accepted(self.messages))
            if self._spec.sources is not None:
                self._spec.sources.marks.forget(self.id)
        return where

    def spend(self, usage: Usage, model: str = "", job: str = "recall and maps") -> None:
        """Count tokens that were used beside the conversation."""
        self._count(usage, job, model)
        for budget in self._budgets:
            budget.spend(usage)
        with suppress(StoreError):  # a counter is not worth a word
            self.store.count(self.id, usage)

    def relocate(self, notebook: str, to: str) -> None:
        """Go on in a notebook that was renamed, if that is the one the session is in."""
        if self._identity.notebook == notebook:
            self._identity = replace(self._identity, notebook=to)

    def leave(self) -> None:
        """Let go of what the session needed, as far as it is not the models' or the store's.

        The external memory may take seconds to say goodbye. The session can be resumed later.
        """
        if self.agent.engine is not None:
            self.agent.engine.session_ended()
        if self._spec.sources is not None:
            self._spec.sources.left(self.agent.messages)

    def end(self) -> None:
        """Leave the session and mark it as ended, so that it is not resumed on its own."""
        self.leave()
        with suppress(StoreError):  # then it is merely offered again
            self.store.end(self.id)

    def standing(self) -> list[Budget]:
        """Return what is left of the session's and the notebook's budgets."""
        return standing_budgets(
            self.store,
            self.id,
            notebook=self._identity.notebook,
            limits=self._spec.budget,
            known=self.usage,
        )

    def _moved(self, session_id: str) -> None:
        """Go on under the id of a copy, with an engine that reads and writes there."""
        if self.agent.place.session == self.id:
            self.agent.place = replace(self.agent.place, session=session_id)
        self.id = session_id
        if self.agent.engine is not None:
            self.agent.engine.session_ended()
        self._engage()

    def _engage(self) -> None:
        """Give the agent its context engine, and the engine's tools."""
        self.agent.engine = self._spec.engine(self.store, self.place, self.agent.in_view)
        if self.agent.engine is not None:
            self.agent.engine.session_started(self.id, self.agent.request)
        self.use(self._spec.tools)

    async def _clear_up(self) -> None:
        """Compress a resumed conversation that is close to the window, once."""
        if not self._resumed or self.agent.engine is None:
            return
        self._resumed = False
        if overdue(len(self.agent.messages), self.agent.prompt_tokens(), self.agent.model.window):
            await self.agent.compress(budgets=self._budgets)

    async def _with_recall(self, prompt: str | Message) -> Message:
        """Return the user's message, and behind it what an external memory recalls."""
        message = Message.user(prompt) if isinstance(prompt, str) else prompt
        sources = self._spec.sources
        if sources is None or not sources.settings.memory.provider:
            return message
        said = message.parts[0] if message.parts else Text("")
        text = await in_thread(sources.recalled, said.text if isinstance(said, Text) else "")
        return replace(message, parts=(*message.parts, Text(text, "outside"))) if text else message

    def _rebuilt(self, note: str) -> str:
        """Return the prompt that follows a compression, made of what is known now."""
        self.prompt = compose(self._spec, self._identity.platform, self.id)
        if note:
            self.prompt = self.prompt.with_note(note)
        self.agent.background = background(self.prompt, self._spec.sources)
        return self.prompt.text

    def _count(self, usage: Usage, job: str, model: str = "") -> None:
        self.usage += usage
        key = (job or "answers", model or "several models")
        self.by_job[key] = together([self.by_job.get(key, Usage()), usage])

    def _fold(self, event: Event) -> None:
        if isinstance(event, UsageReported):
            self._count(event.usage, event.purpose, event.model)
        elif isinstance(event, ChildFinished):
            self._count(event.usage, "child agents")
        elif isinstance(event, ContextCompressed) and event.phase != "rewound":
            self.compressions.append(event)


def _is_the_users(message: Message) -> bool:
    return is_prompt(message) and not is_ours(message)
