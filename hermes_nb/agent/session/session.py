"""One conversation: an agent and its rows in the store, started or resumed."""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.prompt_sources import PromptSources, background
from hermes_nb.agent.session.recorder import Recorder, recorder_of
from hermes_nb.agent.session.usage import standing_budgets, total_usage
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
from hermes_nb.prompt.hints import HintTracker
from hermes_nb.safety.administrator import NONE, Policy
from hermes_nb.safety.provenance import accepted, outside
from hermes_nb.safety.redact import redact, without_secrets
from hermes_nb.tools.wrappers import with_context, with_hints

FRESH = 60.0
"""Minimum seconds before the budgets reread the usage of other kernels."""
InView = Callable[[], Sequence[Message]]
CHILD, REVIEW = "child", "review"
"""Sources of sessions created from another one: child agents and maps; background reviews."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The circumstances of a conversation."""

    source: str = "script"
    """The kind of caller, such as `notebook`, `chat` or `script`, or `CHILD` or `REVIEW`."""
    notebook: str = ""
    """The notebook's absolute path, or "" for none."""
    title: str = ""
    """The session's title."""
    parent: str = ""
    """The id of the session that it was created from, or "" for none."""

    @property
    def platform(self) -> Platform:
        """The front end that displays its answers; the prompt describes that front end's format."""
        known: dict[str, Platform] = {"notebook": "notebook", "chat": "chat", "editor": "editor"}
        return known.get(self.source, "terminal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """The settings and parts from which a session is built."""

    model: ChatModel
    """The conversation's model."""
    tools: Toolset
    """The tools for turns that do not select any."""
    max_requests: int = MAX_REQUESTS
    """Maximum number of model requests in a turn."""
    sources: PromptSources | None = None
    """The sources of the system prompt, or None to use `texts`."""
    texts: PromptTexts = field(default_factory=PromptTexts)
    """Fixed texts for the system prompt, used if there are no `sources`."""
    choose: Callable[[Sequence[str]], Toolset] = lambda _: Toolset()
    """Returns the tools for a list of names."""
    enforce: bool | None = None
    """As in `PromptContext`."""
    marked: bool = False
    """Whether the tools enclose untrusted results in tags."""
    engine: Callable[[SessionStore, Place, InView], ContextEngine | None] = lambda *_: None
    """Makes the context engine from the store, the session's place, and a function that returns the
    messages that the model sees. None for no engine."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    """Spending limits for the session and its notebook."""
    jobs: Jobs = field(default_factory=Jobs)
    """The list of running background jobs."""
    preface: Preface = field(default_factory=Preface)
    """Texts and messages sent with every request and not stored."""
    policy: Policy = NONE
    """The administrator's policy."""
    watched: Callable[[Toolset, str], Toolset] = lambda tools, _: tools
    """Wraps tools so that their calls are recorded, for a source, as in `Identity`."""
    sinks: Callable[[Agent, str, str], Sequence[EventSink]] = lambda *_: ()
    """Makes additional event sinks, given an agent and the ids of its session and parent."""


def compose(spec: SessionSpec, platform: Platform, session_id: str) -> Prompt:
    """Return the system prompt built from the current state of the sources."""
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
"""Layers of the system prompt that come from the user's Hermes directory."""


class Session:
    """A conversation that outlives the kernel. Make one with `start` or `resume`.

    The store has the session's total usage; `usage` and `by_job` cover only this process.
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
        self.by_job: dict[tuple[str, str], Usage] = {}  # by purpose and model
        self.compressions: list[ContextCompressed] = []  # by this process, oldest first
        self.hints = spec.sources.tracker(agent.messages) if spec.sources else None
        self._identity = identity
        self._spec = spec
        self._budgets: tuple[Budget, ...] = ()
        self._standing: list[Budget] = []
        self._standing_for: tuple[str, str, BudgetSettings] | None = None
        self._standing_read = 0.0  # monotonic
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
        """Start a conversation; if the store is not writable, it is kept only in memory."""
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
        """Resume a stored conversation with its system prompt unchanged, byte for byte.

        If a killed process left calls without results, results are added and stored, so that every
        later resume sends the same bytes.
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
        sees_images: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Run a turn and yield its events.

        A resumed conversation that fills the context window is compressed first; only the sinks
        receive the events of this compression.

        Args:
            prompt: the user's message
            sinks: receive the events after the session's own sinks
            max_requests: the maximum number of model requests in this turn
            budgets: spending limits in addition to the session's and its notebook's
            effort: how much the model should reason, or "" for the model's default
            place: the turn's place; by default, the session's
            preface: sent with the turn's requests, after the session's preface
            sees_images: whether the model is known to accept images, for the tools

        Raises:
            SessionBusy: another turn is running; it is not affected
            ConfigError: the policy does not allow that many requests
        """
        self.check_idle()
        self._spec.policy.check_most("max_requests", max_requests, self.agent.max_requests)
        self._taking = True
        extra, sources = [*sinks], self._spec.sources
        if sources is not None and sources.settings.memory.provider:
            extra.append(sources.on_event)
        if sources is not None and not self._begun:
            sources.prepare()
        self._begun = True
        self.agent.sinks += extra
        place = place or self.place
        self.agent.place = place if place.session else replace(place, session=self.id)
        try:
            limited = self._spec.budget.session or self._spec.budget.notebook
            self._budgets = (
                *budgets,
                *(await in_thread(self.open_budgets) if limited else ()),
            )
            self.agent.preface = self._spec.preface + (preface or Preface())
            await self._clear_up()
            message = await self._with_recall(prompt)
            self.agent.effort = effort
            self.agent.sees_images = sees_images
            run = self.agent.run(message, max_requests=max_requests, budgets=self._budgets)
            async with aclosing(run) as events:
                async for event in events:
                    yield event
        finally:
            self._taking = False
            self._budgets = ()
            self.agent.preface = self._spec.preface
            self.agent.sinks = [sink for sink in self.agent.sinks if sink not in extra]

    async def keep_stopped(self, prompts: list[str]) -> None:
        """Add prompts that were interrupted before their turn as stopped turns; empty the list."""
        while prompts:
            async with aclosing(self.agent.run(prompts.pop(0))) as stopped:
                await anext(stopped)

    def check_idle(self) -> None:
        """Raise `SessionBusy` if a turn is running or being prepared."""
        if self._taking:
            raise SessionBusy(BUSY)
        self.agent.check_idle()

    @property
    def personal(self) -> tuple[str, ...]:
        """The prompt's layers from the user's Hermes directory; cassettes must not contain them."""
        return tuple(layer.text for layer in self.prompt.layers if layer.name in PERSONAL)

    @property
    def place(self) -> Place:
        """The conversation's session, turn and notebook."""
        return Place(session=self.id, notebook=self._identity.notebook)

    @property
    def jobs(self) -> Jobs:
        """The running background jobs."""
        return self._spec.jobs

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""
        return self.agent.messages

    def adopt(self, spec: SessionSpec) -> None:
        """Continue with a different model or tools, but the same prompt. Raise `SessionBusy`."""
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
        """From the next turn on, use these tools, with hints, and the context engine's tools."""
        engine = self.agent.engine
        if self._offered == (tools, engine):  # same objects, so caches by identity stay valid
            return
        self._offered = tools, engine
        sources, hinted = self._spec.sources, tools
        if self.hints is not None and sources is not None:
            hinted = with_hints(tools, self.hints, partial(_is_foreign, sources, self.hints))
        self.agent.tools = self._spec.watched(
            with_context(hinted, engine, self._spec.policy), self._identity.source
        )

    def reload(self) -> Prompt:
        """Rebuild the system prompt from current files and memory, and store it."""
        self.check_idle()
        self.prompt = compose(self._spec, self._identity.platform, self.id)
        self.agent.system = self.prompt.text
        self.agent.background = background(self.prompt, self._spec.sources)
        try:
            stored = [without_secrets(message) for message in self.agent.messages]
            self.store.replace(self.id, stored, system_prompt=redact(self.prompt.text))
        except StoreError as error:
            message = f"the new prompt applies to this kernel but could not be saved: {error}"
            raise ConfigError(message) from error
        return self.prompt

    async def compress(self, focus: str = "") -> ContextCompressed | None:
        """Compress the conversation now; return None if that would not shorten it."""
        self.check_idle()
        return await self.agent.compress(focus)

    def restore(self) -> ContextCompressed:
        """Undo the last compression; raise `ConfigError` if there is none."""
        self.check_idle()  # before the store is changed
        messages = self.store.restore(self.id)
        if messages is None:
            raise ConfigError("there is no compression to undo in this session")
        return self.agent.restore(messages)

    def asked(self, turns: int = 1) -> StoredMessage:
        """Return the stored prompt of the turn that is `turns` turns from the end.

        Raises `ConfigError` if fewer uncompressed turns are left, and `SessionBusy`.
        """
        self.check_idle()
        rows = self.store.rows(self.id)
        found = [row for row in rows if row.state == "active" and _is_the_users(row.message)]
        if not 0 < turns <= len(found):
            there = number_of(len(found), "turn")
            raise ConfigError(
                f"cannot undo {number_of(turns, 'turn')}; this session has "
                f"{there} that can be undone"
            )
        return found[-turns]

    def rewind(self, turns: int = 1) -> Message:
        """Remove the last turns from the conversation and return the first removed prompt.

        Their rows stay in the store, but searches skip them. Raises the same errors as `asked`.
        """
        stored = self.asked(turns).message
        starts = [i for i, each in enumerate(self.messages) if _is_the_users(each)]
        prompt = self.messages[starts[-turns]] if len(starts) >= turns else None
        if prompt is None or without_secrets(prompt) != stored:
            raise ConfigError(
                "the session is not being saved at the moment, so no turn can be undone"
            )
        self.agent.restore(self.messages[: starts[-turns]], phase="rewound")
        self.agent.turns -= turns
        return prompt

    def accept_outside(self) -> str:
        """Trust the untrusted content in the conversation so far; return its origins, or "".

        Raises `SessionBusy`.
        """
        where = outside(self.messages)
        if where:
            self.agent.restore(accepted(self.messages))
            if self._spec.sources is not None:
                self._spec.sources.marks.forget(self.id)
        return where

    def spend(self, usage: Usage, model: str = "", job: str = "recall and maps") -> None:
        """Count tokens used outside the conversation."""
        self._count(usage, job, model)
        for budget in self._budgets:
            budget.spend(usage)
        if not self._budgets:
            self._standing_for = None
        with suppress(StoreError):  # not worth reporting
            self.store.count(self.id, usage)

    def relocate(self, notebook: str, to: str) -> None:
        """Update the session's notebook after a rename, if it is the renamed one."""
        if self._identity.notebook == notebook:
            self._identity = replace(self._identity, notebook=to)

    def leave(self) -> None:
        """Release the session's resources, but not the models or the store.

        The external memory may take seconds to close. The session can be resumed later.
        """
        if self.agent.engine is not None:
            self.agent.engine.session_ended()
        if self._spec.sources is not None:
            self._spec.sources.session_ended(self.agent.messages)

    def end(self) -> None:
        """Leave the session and mark it as ended, so that it is not resumed automatically."""
        self.leave()
        with suppress(StoreError):  # at worst, the session is resumed once although it was ended
            self.store.end(self.id)

    def open_budgets(self) -> list[Budget]:
        """Return the remaining budgets of the session and its notebook.

        They count this session's requests immediately. The usage of other kernels is read from the
        store at most once a minute.
        """
        budgets = self.id, self._identity.notebook, self._spec.budget
        now = time.monotonic()
        if budgets != self._standing_for or now - self._standing_read > FRESH:
            self._standing_for, self._standing_read = budgets, now
            self._standing = standing_budgets(
                self.store,
                self.id,
                notebook=self._identity.notebook,
                limits=self._spec.budget,
                known=self.usage,
            )
        return self._standing

    def _moved(self, session_id: str) -> None:
        """Continue under a copy's id, with a new engine that reads and writes there."""
        if self.agent.place.session == self.id:
            self.agent.place = replace(self.agent.place, session=session_id)
        self.id = session_id
        if self.agent.engine is not None:
            self.agent.engine.session_ended()
        self._engage()

    def _engage(self) -> None:
        """Give the agent its context engine and the engine's tools."""
        self.agent.engine = self._spec.engine(self.store, self.place, self.agent.in_view)
        if self.agent.engine is not None:
            self.agent.engine.session_started(self.id, self.agent.request)
        self.use(self._spec.tools)

    async def _clear_up(self) -> None:
        """Compress a resumed conversation that nearly fills the context window, once."""
        if not self._resumed or self.agent.engine is None:
            return
        self._resumed = False
        if overdue(len(self.agent.messages), self.agent.prompt_tokens(), self.agent.model.window):
            await self.agent.compress(budgets=self._budgets)

    async def _with_recall(self, prompt: str | Message) -> Message:
        """Return the user's message, followed by the text that an external memory recalls."""
        message = Message.user(prompt) if isinstance(prompt, str) else prompt
        sources = self._spec.sources
        if sources is None or not sources.settings.memory.provider:
            return message
        said = message.parts[0] if message.parts else Text("")
        text = await in_thread(sources.recalled, said.text if isinstance(said, Text) else "")
        return replace(message, parts=(*message.parts, Text(text, "outside"))) if text else message

    def _rebuilt(self, note: str) -> str:
        """Return the system prompt to use after a compression, built from the current sources."""
        self.prompt = compose(self._spec, self._identity.platform, self.id)
        if note:
            self.prompt = self.prompt.with_note(note)
        self.agent.background = background(self.prompt, self._spec.sources)
        return self.prompt.text

    def _count(self, usage: Usage, job: str, model: str = "") -> None:
        self.usage += usage
        key = (job or "answers", model or "several models")
        self.by_job[key] = total_usage([self.by_job.get(key, Usage()), usage])

    def _fold(self, event: Event) -> None:
        if isinstance(event, UsageReported):
            self._count(event.usage, event.purpose, event.model)
        elif isinstance(event, ChildFinished):
            self._count(event.usage, "child agents")
        elif isinstance(event, ContextCompressed) and event.phase != "rewound":
            self.compressions.append(event)


def _is_the_users(message: Message) -> bool:
    return is_prompt(message) and not is_ours(message)


def _is_foreign(sources: PromptSources, hints: HintTracker, text: str) -> bool:
    """Return whether a hint contains untrusted content: one of its lines, or a whole file."""
    found = (file.path for file in hints.discovered)
    return sources.marks.quoted(text, sources.workdir) or any(map(sources.marks.holds, found))
