"""`Hermes`: the agent for scripts, notebooks without magics, and tests.

```python
from hermes_nb import Hermes

with Hermes() as hermes:
    print(hermes.ask("How many rows does data/penguins.csv have?").text)
```

In async code, use `async with` and `stream`:

```python
async with Hermes() as hermes:
    async for event in hermes.stream("And which island has most of them?"):
        if isinstance(event, TextDelta):
            print(event.text, end="")
```
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TextIO

from hermes_nb.agent.approvals import RefusingApprover
from hermes_nb.agent.fanout.executors import HERE
from hermes_nb.agent.fanout.inputs import inputs_of
from hermes_nb.agent.fanout.maps import Mapped, MapPlan, run_map
from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.learning.naming import named_after_turn
from hermes_nb.agent.learning.reviews import Reviews, looking_back
from hermes_nb.agent.models import check_given
from hermes_nb.agent.runtime import Opening
from hermes_nb.agent.session.session import Session
from hermes_nb.agent.session.turn import Turn, turn_of
from hermes_nb.agent.settings.config import APPROVE_MODES, load_settings
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.conversation import Preface
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    Event,
    MessageAdded,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
)
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Approver, ChatModel, EventSink
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import LoopThread, in_thread
from hermes_nb.core.tools import Place, Tool, Toolset
from hermes_nb.safety.redact import redact
from hermes_nb.tools.schema import as_tool

NAMED_SECONDS = 10.0
"""Seconds that `close` waits for the session's title to be generated."""
VARIABLE = "HERMES_NB_PROGRESS"
"""Environment variable that turns the progress line off with `0`, `off`, `false` or `no`."""
INTERVAL = 0.1
"""Minimum seconds between two updates while text streams."""
WIDTH = 78
CLEAR = "\r\x1b[2K"


def wanted(stream: TextIO | None = None) -> bool:
    """Return whether to show progress: if `stream` (default: stderr) is a capable terminal."""
    stream = sys.stderr if stream is None else stream
    if stream is None or os.environ.get(VARIABLE, "1") in ("0", "off", "false", "no"):
        return False
    return os.environ.get("TERM") != "dumb" and stream.isatty()


class ProgressLine:
    """An event sink that shows progress on a single line of `stream`, rewritten in place."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._began = time.monotonic()
        self._written = 0.0
        self._characters = 0
        self._calls: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Update the line for an event."""
        match event:
            case TextDelta(text):
                self._characters += len(text)
                self._show(f"answering, {self._characters:,} characters", hurry=False)
            case ToolStarted(call):
                gist = next((str(value) for value in call.arguments.values()), "")
                self._calls[call.id] = f"{call.name} {gist}"
                self._show(self._calls[call.id])
            case ToolFinished(call):
                self._calls.pop(call.id, None)
                self._show(next(iter(self._calls.values()), "thinking"))
            case RequestRetried(reason):
                self._show(f"{reason}; asking again")
            case MessageAdded(message) if message.role in ("user", "tool") and not self._calls:
                self._characters = 0
                self._show("thinking")
            case TurnEnded():
                self.clear()
            case _:
                pass

    def clear(self) -> None:
        """Erase the line."""
        self._stream.write(CLEAR)
        self._stream.flush()

    def _show(self, text: str, *, hurry: bool = True) -> None:
        now = time.monotonic()
        if not hurry and now - self._written < INTERVAL:
            return
        self._written = now
        shown = one_line(visible(redact(text)), WIDTH - 12)
        self._stream.write(f"{CLEAR}◌ {now - self._began:.0f} s · {shown}")
        self._stream.flush()


__all__ = ["Hermes", "RefusingApprover", "Turn"]


class Hermes:
    """An agent with its own session.

    If stderr is a terminal, it shows a progress line while `ask` runs. To switch it off, set
    `HERMES_NB_PROGRESS=0` or the attribute `progress`. The session and its tools are created when
    the first turn starts.

    Args:
        model: a model name, or a `ChatModel` such as `ScriptedModel`; by default, the one in the
            settings
        base_url: the model server's address
        api_key: the key for that server
        home: the Hermes directory, by default `HERMES_HOME` or `~/.hermes`
        cwd: the working directory for file and terminal tools, by default the process's
        tools: names of built-in tools or toolsets, your own tools and functions, or both
        approve: a mode (`ask`, `edits`, `all`, `never`) or an `Approver`; without an `Approver`,
            actions that require approval are refused
        window: the context window in tokens
        auxiliary: the model for work outside the conversation, such as summaries
        learn: run background reviews as in a notebook. Their writes are listed in `learned`, and
            `close` waits until a running review has finished.

    Raises:
        ConfigError: an argument or a setting is invalid
    """

    def __init__(  # noqa: PLR0913 - a public API
        self,
        model: str | ChatModel | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        home: str | Path | None = None,
        cwd: str | Path | None = None,
        tools: Iterable[str | Tool | Callable[..., Any]] | None = None,
        approve: str | Approver | None = None,
        window: int | None = None,
        auxiliary: ChatModel | None = None,
        learn: bool = False,
    ) -> None:
        given = None
        if tools is not None:
            given = tuple(each if isinstance(each, str) else as_tool(each) for each in tools)
        approver: Approver = RefusingApprover()
        if approve is not None and not isinstance(approve, str):
            approver, approve = approve, "ask"
        if approve is not None and approve not in APPROVE_MODES:
            raise ConfigError(f"approve is {approve!r}; use one of {', '.join(APPROVE_MODES)}")
        overrides = {
            "model": model if isinstance(model, str) else None,
            "base_url": base_url,
            "api_key": api_key,
            "approve": approve,
            "window": window,
        }
        self.warnings: list[str] = []
        self.learned: list[str] = []
        self._learn = learn
        self._reviews: Reviews | None = None
        self._side = LoopThread("hermes-title")
        self._naming: list[Future[None]] = []
        self.progress = wanted()
        self._given_model = not (model is None or isinstance(model, str))
        self._settings = load_settings(home=home, overrides=overrides)
        self._settings.insist(*(name for name, value in overrides.items() if value is not None))
        self._handed = [None if isinstance(model, str) else model, auxiliary]
        self._check_handed()
        if not isinstance(approver, RefusingApprover):
            self._settings.policy.check("modes", "all")  # an approver may approve anything
        if learn:
            self._settings.policy.check("learning")
        self._root = Path(cwd).absolute() if cwd else None
        self._opening = Opening(
            self._settings,
            approver=approver,
            tell=self.warnings.append,
            source="script",
            root=self._root,
            model=None if isinstance(model, str) else model,
            auxiliary=auxiliary,
            own=[tool for tool in given or () if isinstance(tool, Tool)],
            chosen=None if given is None else [_name(each) for each in given],
        )
        self._loop: LoopThread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._loop is not None:  # `ask` ran on its own loop
            await in_thread(self.close)
        else:
            await in_thread(self._looked_back)
            await self._opening.aclose()

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._opening.session().id

    @property
    def tools(self) -> Toolset:
        """The session's tools."""
        return self._opening.session().agent.tools

    @property
    def messages(self) -> list[Message]:
        """The conversation so far."""
        session = self._opening.current
        return session.agent.messages if session else []

    @property
    def jobs(self) -> Jobs:
        """The running background jobs, such as child agents; `job.stop()` works from any thread."""
        session = self._opening.current
        return session.jobs if session else Jobs()

    @property
    def system_prompt(self) -> str:
        """The session's system prompt."""
        return self._opening.session().agent.system

    def ask(
        self,
        prompt: str,
        *,
        max_requests: int | None = None,
        system: str = "",
        prefill: Iterable[Message] = (),
    ) -> Turn:
        """Run a turn and return its result; a failed turn is returned, not raised.

        Works with and without a running event loop. Ctrl-C stops the turn, leaves the conversation
        in a valid state and raises KeyboardInterrupt.

        Args:
            prompt: the user's message
            max_requests: the maximum number of model requests in this turn
            system: text added after the system prompt for this turn only; not stored
            prefill: messages sent before the conversation for this turn only; not stored
        """
        if self._loop is None:
            self._loop = LoopThread("hermes-loop")
        preface = Preface(system=system, prefill=tuple(prefill))
        return self._loop.run(self._collect(prompt, max_requests, preface))

    def map(
        self,
        prompt: str,
        inputs: Iterable[str | Path] | Mapping[str, str],
        *,
        executor: str = HERE,
        tools: Iterable[str] = (),
        parallel: int | None = None,
        retry: bool = False,
        max_cost: float | None = None,
        max_tokens: int | None = None,
    ) -> Mapped:
        """Run the same prompt on many inputs in parallel and return one row per input.

        The same call resumes a map that was interrupted. Ctrl-C keeps the results so far.

        Args:
            prompt: the prompt for each input
            inputs: files, patterns relative to the working directory such as `notes/*.md`, or a
                mapping from names to texts
            executor: `threads`, `ipyparallel[:PROFILE]` or `package:factory`
            tools: the tools that each task may use. A toolset's name selects only its read-only
                tools; actions that require approval are refused.
            parallel: the number of tasks that run at the same time
            retry: also rerun tasks that failed or were left unfinished by an earlier run
            max_cost: the limit for the whole map in US dollars
            max_tokens: the limit for the whole map in tokens
        """
        if self._loop is None:
            self._loop = LoopThread("hermes-loop")
        limits = Limits(cost=max_cost, tokens=max_tokens)
        plan = MapPlan(prompt=prompt, tools=tuple(tools), parallel=parallel, retry=retry)
        return self._loop.run(self._map(plan, inputs, executor, limits))

    async def stream(
        self,
        prompt: str,
        *,
        max_requests: int | None = None,
        system: str = "",
        prefill: Iterable[Message] = (),
    ) -> AsyncGenerator[Event, None]:
        """Run a turn and yield its events as they happen; takes the same arguments as `ask`."""
        preface = Preface(system=system, prefill=tuple(prefill))
        async with aclosing(self._turn(prompt, max_requests, preface)) as events:
            async for event in events:
                yield event

    async def _turn(
        self,
        prompt: str,
        max_requests: int | None,
        preface: Preface,
        sinks: Iterable[EventSink] = (),
    ) -> AsyncGenerator[Event, None]:
        if not prompt.strip():
            raise ConfigError("the prompt is empty")
        self._check_handed()
        session = self._opening.session(one_line(prompt, 60))
        if self._learn and self._reviews is None:
            self._reviews = looking_back(self._opening, session)
        turn = session.turn(prompt, sinks=sinks, max_requests=max_requests, preface=preface)
        async with aclosing(turn) as events:
            async for event in events:
                if isinstance(event, TurnEnded) and event.reason in ("answered", "budget"):
                    self._name(session)
                    self._look_back(session)
                yield event

    def _check_handed(self) -> None:
        """Raise `ConfigError` if the current policy does not allow the given model objects."""
        for model in self._handed:
            check_given(model)

    def _name(self, session: Session) -> None:
        """Generate the session's title in the background if `auxiliary.titles` is a model."""
        naming = None if self._opening.replays else named_after_turn(session, self._settings)
        if naming is not None:
            self._naming.append(self._side.submit(naming))

    def _look_back(self, session: Session) -> None:
        if self._reviews is not None:
            self.learned += self._reviews.learned()
            self._reviews.after_turn(session, live=False)

    def _looked_back(self) -> None:
        """Wait for the running background review and for the session's title."""
        wait(self._naming, NAMED_SECONDS)
        self._side.close()
        if self._reviews is not None:
            self._reviews.finish()
            self.learned += self._reviews.learned()
        self._reviews = None

    async def _map(
        self,
        plan: MapPlan,
        inputs: Iterable[str | Path] | Mapping[str, str],
        executor: str,
        limits: Limits,
    ) -> Mapped:
        if not plan.prompt.strip():
            raise ConfigError("the prompt is empty")
        self._check_handed()
        if executor != HERE and self._given_model:
            message = (
                "a model object cannot be sent to another process; pass the model's name instead"
            )
            raise ConfigError(message)
        root = (self._root or Path.cwd()).absolute()
        found = inputs_of(inputs, root=root)
        session = self._opening.session(one_line(plan.prompt, 60))
        model = session.agent.model
        standing = await in_thread(session.open_budgets)
        end = self._settings.endpoint
        return await run_map(
            replace(plan, model=model.name, base_url=end.base_url, root=str(root)),
            found,
            executor=executor,
            model=model,
            store=session.store,
            budgets=[*([Budget(limits, scope="this map")] if limits else []), *standing],
            jobs=session.jobs,
            spent=session.spend,
            tools=self._opening.for_tasks(plan.tools),
            observers=self._opening.observers,
            place=Place(session=session.id, turn=session.agent.turns),
        )

    def close(self) -> None:
        """Release the models and the store; the session can be resumed later."""
        loop, self._loop = self._loop, None
        if loop is None and not self._opening.begun:
            return
        loop = loop or LoopThread("hermes-loop")  # the caller's loop may be running
        try:
            self._looked_back()
        finally:
            try:
                loop.run(self._opening.aclose())
            finally:
                loop.close()

    async def _collect(self, prompt: str, max_requests: int | None, preface: Preface) -> Turn:
        events: list[Event] = []
        line = [ProgressLine()] if self.progress else []
        async with aclosing(self._turn(prompt, max_requests, preface, line)) as turn:
            async for event in turn:
                events.append(event)
        return turn_of(events)


def _name(given: str | Tool) -> str:
    return given if isinstance(given, str) else given.name
