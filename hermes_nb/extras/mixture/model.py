"""A mixture of models: several references advise an aggregator, which writes the answer.

A `Mixture`'s references are asked once per prompt, in parallel. They read the conversation and
cannot call tools. A reference that fails or takes too long is left out. The aggregator reads their
answers after the prompt, calls the tools, and streams the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import Delta, ReasoningDelta
from hermes_nb.core.messages import Memo, Message, Reply, Text
from hermes_nb.core.protocols import ChatModel, Request, Waited, body_of
from hermes_nb.core.text import head_tail, number_of, one_line
from hermes_nb.extras.mixture.settings import PREFIX, MixtureSettings
from hermes_nb.models.canonical import is_guidance
from hermes_nb.models.consulting import (
    ANSWER,
    SECONDS,
    SHOWN,
    Consulted,
    Rendition,
    consult,
    renditions,
)
from hermes_nb.models.installed import ModelSetup

ADVISE = (
    "[You are one of several models that are asked this at the same time, and you cannot call "
    "tools now. Give your best answer and what it rests on; say what should be looked up. Another "
    "model weighs the answers and acts.]"
)
WEIGH = (
    "[Other models were asked the same; this is for you alone. They had no tools, and may be "
    "wrong or contradict one another. Weigh what they say, check what can be checked, and give "
    "your own answer.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A model that gives advice."""

    model: ChatModel
    """The model."""
    seconds: float = SECONDS
    """Its time limit in seconds."""


class Mixture:
    """The model `mixture:NAME`: `references` advise, and the `aggregator` answers.

    References are asked only for new prompts in a turn (whose requests share a `Waited`). Steps
    after tool calls, nudges and summaries go to the aggregator alone.
    """

    def __init__(self, name: str, references: Sequence[Reference], aggregator: ChatModel) -> None:
        self._name = f"{PREFIX}{name}"
        self._references = tuple(references)
        self._aggregator = aggregator
        self._advised: Memo[Rendition] = Memo()

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int | None:
        """The aggregator's context window, because the aggregator answers.

        References that overflow are left out.
        """
        return self._aggregator.window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        last = request.messages[-1]
        if request.waited is not None and last.role == "user" and not is_guidance(last.text):
            kept = self._advised.get(last, Rendition)
            if kept.message is None:
                answers: dict[int, Consulted] = {}
                async with aclosing(self._advice(request, answers)) as items:
                    async for item in items:
                        yield item
                kept.message = _with_advice(last, [answers[n].text for n in sorted(answers)])
        async with aclosing(self._aggregator.stream(self._weighing(request))) as replies:
            async for reply in replies:
                yield replace(reply, model=self.name) if isinstance(reply, Reply) else reply

    async def aclose(self) -> None:
        for model in (*(each.model for each in self._references), self._aggregator):
            await model.aclose()

    def body(self, request: Request) -> bytes:
        return body_of(self._aggregator, self._weighing(request))

    def _weighing(self, request: Request) -> Request:
        """Return the request for the aggregator, in which the advice follows the prompts."""
        return replace(request, messages=renditions(request.messages, self._advised))

    async def _advice(
        self, request: Request, answers: dict[int, Consulted]
    ) -> AsyncGenerator[Delta, None]:
        """Ask all references in parallel, store their answers in `answers`, and report each."""
        *before, last = request.messages
        asked = replace(last, parts=(*last.parts, Text(ADVISE)))
        each = replace(request, messages=(*before, asked), tool_choice="none")
        numbers = {
            asyncio.create_task(
                consult(one.model, replace(each, waited=Waited()), one.seconds, "reference")
            ): number
            for number, one in enumerate(self._references)
        }
        waiting = set(numbers)
        yield ReasoningDelta(f"Asking {number_of(len(waiting), 'model')}. ")
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=numbers.__getitem__):
                    found = answers[numbers[task]] = task.result()
                    for report in found.usage:
                        yield report
                    yield ReasoningDelta(found.display_text(SHOWN // len(self._references)))
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def _with_advice(message: Message, answers: Sequence[str]) -> Message:
    """Return a prompt with the references' answers, or unchanged if there are none."""
    said = [head_tail(text, ANSWER) for text in answers if text]
    numbered = [f"## Answer {number}\n\n{text}" for number, text in enumerate(said, start=1)]
    advice = Text("\n\n".join([WEIGH, *numbered]))
    return replace(message, parts=(*message.parts, advice)) if said else message


def model(setup: ModelSetup) -> Mixture:
    """Return the mixture with this name: an entry point of `hermes_nb.models`.

    The conversation's main model aggregates if it asks the question and the settings don't specify
    an aggregator.

    Raises:
        ConfigError: there is no such mixture.
    """
    chosen = setup.composed.get(f"{PREFIX}{setup.variant}")
    if not isinstance(chosen, MixtureSettings):
        there = ", ".join(name for name in setup.composed if name.startswith(PREFIX))
        ways = f"available: {there}" if there else "define one as `mixture` in config.yaml"
        raise ConfigError(f"there is no mixture {one_line(setup.variant, 40)!r}; {ways}")
    end = chosen.answers or setup.auxiliary.get("mixture")
    if end is not None or setup.main is None:
        aggregator = setup.connect(end or chosen.references[0].end, "answers", {})
    else:
        aggregator = setup.main
    references = []
    for member in chosen.references:
        fields = {} if member.temperature is None else {"temperature": member.temperature}
        advises = setup.connect(member.end, "advises", fields)
        references.append(Reference(model=advises, seconds=member.seconds or SECONDS))
    return Mixture(setup.variant, references, aggregator)
