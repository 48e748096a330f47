"""An environment for reinforcement learning: a model's messages in, what tools return out.

A `Environment` leads one conversation at a time through the same loop, tools and guard as every
other, in a home and a directory of its own; the policy that is trained stands where the model does.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hermes_nb.agent.api import Hermes
from hermes_nb.agent.trajectories import Trajectory, as_chat
from hermes_nb.agent.turn import Turn
from hermes_nb.core.errors import HermesError
from hermes_nb.core.messages import Json, Message, Reply, ToolCall, Usage
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool
from hermes_nb.models.text_calls import function_schema

Checker = Callable[[Turn, Path], float]
"""Gives the reward of a turn that is over, from what it says and what lies in its directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a policy sees: `messages` that are new, as TRL reads them, and its `tools`."""

    messages: list[dict[str, Json]] = field(default_factory=list)
    tools: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of an action. `done` says that the conversation is over and `reward` is its own."""

    observation: Observation
    reward: float = 0.0
    done: bool = False
    turn: Turn | None = None


class _Left(HermesError):
    """The conversation is given up: the environment is reset or closed."""


class _Policy:
    """The model of a conversation: it says what `step` is given."""

    name = "policy"
    window = None

    def __init__(self) -> None:
        self.asked: queue.Queue[Request | Turn | BaseException] = queue.Queue()
        self.answer: Future[Message] = Future()

    async def stream(self, request: Request) -> AsyncGenerator[Reply, None]:
        answer: Future[Message] = Future()
        self.answer = answer
        self.asked.put(request)
        yield Reply(message=await asyncio.wrap_future(answer), usage=Usage())

    async def aclose(self) -> None:
        """Do nothing: it holds nothing."""


class Environment:
    """Conversations for a policy, one at a time; close it, or use it as a context manager.

    `tools` are as those of `Hermes`, `files` is a directory that each conversation gets a copy of,
    `approve` what may run unasked: nobody is there to ask. `checker` gives the reward in the end.
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
        self._policy: _Policy | None = None
        self._thread: threading.Thread | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where the running conversation works."""
        if self._folder is None:
            raise HermesError("reset the environment first")
        return Path(self._folder.name, "work")

    def reset(self, prompt: str) -> Observation:
        """Begin a conversation and return its beginning: system prompt, prompt and tools."""
        self.close()
        self._folder = tempfile.TemporaryDirectory(prefix="hermes-environment-")
        if self._files is not None:
            shutil.copytree(self._files, self.directory)
        else:
            self.directory.mkdir()
        self._policy = policy = _Policy()
        self._seen = 0
        home = Path(self._folder.name, "home")
        hermes = Hermes(
            policy, home=home, cwd=self.directory, tools=self._tools, approve=self._approve
        )
        hermes.progress = False

        def lead() -> None:
            try:
                with hermes:
                    policy.asked.put(hermes.ask(prompt, max_requests=self._most_steps))
            except BaseException as error:  # noqa: BLE001 - raised where the step is taken
                policy.asked.put(error)

        self._thread = threading.Thread(target=lead, name="hermes environment", daemon=True)
        self._thread.start()
        return self._next().observation

    def step(self, action: str | Mapping[str, Json] | Message) -> Step:
        """Say something as the model: a text, a message as TRL has it, or a `Message`.

        Raises `HermesError` where no conversation runs.
        """
        if self._policy is None or self._policy.answer.done():
            raise HermesError("no conversation is running; reset the environment")
        self._seen += 1  # its own message
        self._policy.answer.set_result(message_of(action))
        return self._next()

    def close(self) -> None:
        """Give the running conversation up, and remove its directory."""
        if self._policy is not None and not self._policy.answer.done():
            self._policy.answer.set_exception(_Left("the conversation was given up"))
        if self._thread is not None:
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()
        self._policy = self._thread = self._folder = None

    def _next(self) -> Step:
        assert self._policy is not None  # noqa: S101 - a conversation runs
        item = self._policy.asked.get()
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Turn):
            new = as_chat(Trajectory(id="", messages=item.messages[self._seen :]))
            seen = Observation(messages=new)
            reward = self._checker(item, self.directory)
            return Step(observation=seen, reward=reward, done=True, turn=item)
        system = item.messages[0].text if item.messages[0].role == "system" else ""
        said = item.messages[1:] if system else item.messages
        new = as_chat(
            Trajectory(
                id="", messages=tuple(said[self._seen :]), system="" if self._seen else system
            )
        )
        self._seen = len(said)
        tools = [function_schema(tool) for tool in item.tools]
        return Step(observation=Observation(messages=new, tools=tools))


def message_of(action: str | Mapping[str, Json] | Message) -> Message:
    """Return what a policy says as a message; a call that cannot be read is answered as such."""
    if isinstance(action, Message):
        return action
    if isinstance(action, str):
        return Message.assistant(action)
    calls = []
    for number, each in enumerate(action.get("tool_calls") or ()):
        called = each.get("function", each)
        arguments, problem = called.get("arguments", {}), ""
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError as error:
                arguments, problem = {}, f"the arguments are no JSON: {error}"
        if not isinstance(arguments, Mapping):
            arguments, problem = {}, "the arguments are no object"
        call = ToolCall(
            id=str(each.get("id") or f"call-{number}"),
            name=str(called.get("name", "")),
            arguments=arguments,
            problem=problem,
        )
        calls.append(call)
    return Message.assistant(
        str(action.get("content") or ""),
        calls=calls,
        reasoning=str(action.get("reasoning_content") or ""),
    )
