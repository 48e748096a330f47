"""A model that plays a script, for tests, documentation and notebooks without an API key.

```python
model = ScriptedModel([call("read_file", path="a.csv"), "Three rows."])
```
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable

from hermes_nb.core.errors import HermesError
from hermes_nb.core.events import Delta, ReasoningDelta, TextDelta
from hermes_nb.core.messages import Json, Message, Reply, ToolCall, Usage
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import estimate_tokens

Said = str | ToolCall | Message | Reply | list[str | ToolCall]
Step = Said | Exception | Callable[[Request], Said]
"""The answer to one request: text, a call, a list of texts and calls, a whole message or reply, an
exception to raise, or a function of the request that returns one of these."""


def call(name: str, /, **arguments: Json) -> ToolCall:
    """Return a tool call for a script; its id is assigned when it is played."""
    return ToolCall(id="", name=name, arguments=arguments)


class ScriptError(HermesError):
    """The conversation did not follow the script."""


class ScriptedModel:
    """Answers the n-th request with the n-th step.

    `.requests` records every request. A request beyond the last step raises `ScriptError`; `done()`
    raises it if any steps are left. Text is streamed word by word, each after `delay` seconds.
    """

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        name: str = "scripted",
        window: int | None = None,
        delay: float = 0.0,
    ) -> None:
        self.steps = list(steps)
        self.requests: list[Request] = []
        self._name = name
        self._window = window
        self._delay = delay

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int | None:
        return self._window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        index = len(self.requests)
        self.requests.append(request)
        if index >= len(self.steps):
            last = request.messages[-1].text[:200] if request.messages else ""
            raise ScriptError(
                f"the script has {len(self.steps)} steps, and this is request {index + 1}: "
                f"{last!r}; add a step"
            )
        step = self.steps[index]
        if callable(step):
            step = step(request)
        if isinstance(step, Exception):
            raise step
        reply = _reply(step, request, index)
        if reply.message.reasoning:
            yield ReasoningDelta(reply.message.reasoning)
        for word in re.findall(r"[^ ]* |[^ ]+", reply.message.text):  # keeps all spaces
            await asyncio.sleep(self._delay)
            yield TextDelta(word)
        yield reply

    def done(self) -> None:
        """Raise `ScriptError` if any steps are left."""
        left = len(self.steps) - len(self.requests)
        if left > 0:
            raise ScriptError(f"{left} of {len(self.steps)} steps were never requested")

    async def aclose(self) -> None:
        """Do nothing, as there is nothing to close."""


def _reply(step: Said, request: Request, index: int) -> Reply:
    if isinstance(step, Reply):
        return step
    message = step if isinstance(step, Message) else _message(step, index)
    usage = Usage(
        input=estimate_tokens(request.messages), output=estimate_tokens([message]), requests=1
    )
    finish = "tool_calls" if message.calls else "stop"
    return Reply(message=message, usage=usage, finish=finish, model="scripted")


def _message(step: str | ToolCall | list[str | ToolCall], index: int) -> Message:
    items = step if isinstance(step, list) else [step]
    calls = [
        ToolCall(
            id=item.id or f"call_{index + 1}_{position + 1}",
            name=item.name,
            arguments=item.arguments,
            text=item.text or json.dumps(item.arguments, ensure_ascii=False),
            problem=item.problem,
        )
        for position, item in enumerate(items)
        if isinstance(item, ToolCall)
    ]
    return Message.assistant("".join(i for i in items if isinstance(i, str)), calls=calls)
