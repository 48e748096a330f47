"""An environment for reinforcement learning: takes a policy's messages, returns tool results.

An `Environment` runs one conversation at a time with the usual loop, tools and guard, in a separate
Hermes directory and working directory. The policy being trained replaces the model.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import queue
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, SupportsFloat

from hermes_nb.agent.api import Hermes
from hermes_nb.agent.session.turn import Turn, turn_of
from hermes_nb.core.errors import HermesError
from hermes_nb.core.messages import Json, Message, Reply, ToolCall, Usage
from hermes_nb.core.protocols import Request
from hermes_nb.core.threads import LoopThread
from hermes_nb.core.tools import Tool
from hermes_nb.extras.training.trajectories import Trajectory, as_chat
from hermes_nb.models.text_calls import function_schema

Checker = Callable[[Turn, Path], float | Coroutine[object, None, float]]
"""Returns the reward for a finished turn, given the turn and its directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A policy's input.

    After a compression, or when another agent continues (a child or its parent), `messages`
    contains that agent's whole conversation instead.
    """

    messages: list[dict[str, Json]] = field(default_factory=list)
    """New messages in TRL's format."""
    tools: list[dict[str, object]] = field(default_factory=list)
    """Schemas of the available tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An action's result."""

    observation: Observation
    """The policy's next input; empty at the end."""
    reward: float = 0.0
    """The conversation's reward; 0 until it ends."""
    done: bool = False
    """Whether the conversation is over."""
    turn: Turn | None = None
    """The finished turn; None until then."""


class _Policy:
    """The model for a conversation and its child agents; replies with the actions of `step`."""

    name = "policy"
    window = None

    def __init__(self) -> None:
        self.asked: queue.Queue[tuple[Request, Future[Message]] | Turn | BaseException]
        self.asked = queue.Queue()

    async def stream(self, request: Request) -> AsyncGenerator[Reply, None]:
        answer: Future[Message] = Future()
        self.asked.put((request, answer))
        yield Reply(message=await asyncio.wrap_future(answer), usage=Usage())

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


class Environment:
    """Conversations for a policy, one at a time; close it, or use it as a context manager.

    Args:
        checker: Returns the reward at the end.
        tools: The tools, as for `Hermes`; None for the default ones.
        files: Directory to copy for each conversation; None for an empty one.
        approve: Approval mode; calls that require approval are refused.
        most_steps: Maximum model requests per conversation.
    """

    def __init__(
        self,
        checker: Checker,
        *,
        tools: Iterable[str | Tool | Callable[..., object]] | None = None,
        files: Path | None = None,
        approve: str = "all",
        most_steps: int = 30,
    ) -> None:
        self._checker = checker
        self._tools = None if tools is None else list(tools)
        self._files = files
        self._approve = approve
        self._most_steps = most_steps
        self._policy = _Policy()
        self._answer: Future[Message] | None = None
        self._loop = LoopThread("hermes environment")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._seen: Sequence[Message] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The current conversation's working directory."""
        if self._folder is None:
            raise HermesError("reset the environment first")
        return Path(self._folder.name, "work")

    def reset(self, prompt: str) -> Observation:
        """Start a conversation and return its system prompt, prompt and tools."""
        self.close()
        # Leftovers, such as a process still writing, must not make the next conversation fail.
        self._folder = tempfile.TemporaryDirectory(
            prefix="hermes-environment-", ignore_cleanup_errors=True
        )
        if self._files is not None:
            shutil.copytree(self._files, self.directory)
        else:
            self.directory.mkdir()
        self._policy, self._seen = _Policy(), ()
        hermes = Hermes(
            self._policy,
            home=Path(self._folder.name, "home"),
            cwd=self.directory,
            tools=self._tools,
            approve=self._approve,
        )
        self._loop.submit(self._run_conversation(hermes, prompt, self._policy))
        return self._next().observation

    async def _run_conversation(self, hermes: Hermes, prompt: str, policy: _Policy) -> None:
        try:
            async with hermes:
                turn = hermes.stream(prompt, max_requests=self._most_steps)
                events = [event async for event in turn]
            policy.asked.put(turn_of(events))
        except asyncio.CancelledError:
            policy.asked.put(HermesError("the conversation was cancelled"))
            raise
        except BaseException as error:  # noqa: BLE001 - raised again in `step`
            policy.asked.put(error)

    def step(self, action: str | Mapping[str, Json] | Message) -> Step:
        """Use a string, a message in TRL's format or a `Message` as the model's reply.

        Raises:
            HermesError: no conversation is running, the action is not a model's message, or the
                checker does not return a number.
        """
        message = message_of(action)
        answer, self._answer = self._answer, None
        if answer is None:
            raise HermesError("no conversation is running; reset the environment")
        answer.set_result(message)
        return self._next()

    def close(self) -> None:
        """Stop the running conversation and its tools, and remove its directory."""
        self._answer = None
        self._loop.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None

    def _next(self) -> Step:
        item = self._policy.asked.get()
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Turn):
            reward = self._judged(item)
            return Step(observation=Observation(), reward=reward, done=True, turn=item)
        request, self._answer = item
        said, seen = tuple(request.messages), len(self._seen)
        first = seen + 1 if seen and said[:seen] == self._seen else 0  # skip the policy's own reply
        self._seen = said
        tools = [function_schema(tool) for tool in request.tools]
        messages = as_chat(Trajectory(id="", messages=said[first:]))
        return Step(observation=Observation(messages=messages, tools=tools))

    def _judged(self, turn: Turn) -> float:
        given = self._checker(turn, self.directory)
        if inspect.iscoroutine(given):
            given = self._loop.run(given)
        reward = float(given) if isinstance(given, SupportsFloat) else math.nan
        if not math.isfinite(reward):
            raise HermesError(f"the checker returned {given!r}; a reward must be a finite number")
        return reward


def message_of(action: object) -> Message:
    """Return a policy's action as a message; an invalid call gets its `problem` set."""
    if isinstance(action, str):
        return Message.assistant(action)
    if isinstance(action, Mapping):
        text, calls = action.get("content") or "", action.get("tool_calls") or ()
        if isinstance(text, str) and isinstance(calls, list | tuple):
            return Message.assistant(
                text,
                calls=[_call(number, each) for number, each in enumerate(calls)],
                reasoning=str(action.get("reasoning_content") or ""),
            )
    elif isinstance(action, Message) and action.role == "assistant":
        return action
    raise HermesError(
        f"{action!r:.200} is not a model's message; use a text or a chat completion message"
    )


def _call(number: int, given: Json) -> ToolCall:
    given = given if isinstance(given, Mapping) else {}
    called = given.get("function", given)
    called = called if isinstance(called, Mapping) else {}
    arguments, problem = called.get("arguments", {}), ""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            arguments, problem = {}, f"the arguments are not JSON: {error}"
    if not isinstance(arguments, Mapping):
        arguments, problem = {}, "the arguments are not a JSON object"
    return ToolCall(
        id=str(given.get("id") or f"call-{number}"),
        name=str(called.get("name", "")),
        arguments=arguments,
        problem=problem,
    )
