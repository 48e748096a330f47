"""Ask a turn's questions in a chat, and match the user's messages to them.

A reply to the question answers it. So does a message sent after it, if the service's messages have
a reliable order and no earlier question is unanswered. Otherwise the answer must contain the
question's number.

A running turn occupies one of the slots for parallel turns. Other chats can use the slot while the
turn's question is pending.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from secrets import randbelow

from hermes_nb.agent.approvals import answer_of
from hermes_nb.core.escapes import visible
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.extras.gateway.core import Binding, Incoming
from hermes_nb.safety.markup import code_block
from hermes_nb.safety.redact import redact

YES_OR_NO = frozenset("y yes n no a always o outside".split())
BARE = re.compile(r"\W*(?:(?:please|thanks|thank you|go ahead)\W*)?", re.IGNORECASE)
"""Text that may follow an approval."""
LATE = "no one answered in time, so it was not run"
THIS, ITSELF = "this message", "the question itself"


class Slot:
    """A slot for one of the turns running in parallel."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places, self._taken = places, False

    async def take(self) -> None:
        """Wait for a free slot and occupy it."""
        await self._places.acquire()
        self._taken = True

    def leave(self) -> None:
        """Free the slot if it is occupied."""
        if self._taken:
            self._taken = False
            self._places.release()


@dataclass(slots=True)
class _Open:
    """A pending question."""

    request: ApprovalRequest
    """The request awaiting an answer."""
    number: str
    """Number that the answer must contain; "" if none is needed."""
    binding: Binding
    """How an answer is matched to its question; see `Binding`."""
    keys: set[str]
    """Keys of the question's messages."""
    answer: asyncio.Future[str]
    """Resolves to the user's answer."""
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the question has been sent."""

    def words(self, message: Incoming) -> str | None:
        """Return the answer in a message, without the number, or None if it answers something else.

        A reply to another message never answers this question, regardless of its text.
        """
        named = None
        if self.number:
            named = re.match(rf"(\W*(?:\w+\W+)?)#?{self.number}\b[.,:!]*", message.text)
        text = named[1] + message.text[named.end() :] if named else message.text
        if message.replies_to:
            is_for_this = message.replies_to in self.keys
        elif self.number:
            is_for_this = named is not None
        else:
            is_for_this = self.binding == "order" and message.after in self.keys
        if not is_for_this or text.lstrip().startswith("/"):
            return None
        text = text.strip()
        if self.request.choices is not None:
            return text
        word = (text.lower().split(maxsplit=1) or [""])[0].rstrip(".,!:")
        numbered = re.fullmatch(r"\w+\W+#?\d{4}\W*", text)  # refers to an earlier question
        return None if word not in YES_OR_NO or numbered else _answer(text, word)

    def wanted(self, to: str) -> str:
        """Return instructions for answering; `to` describes the message to reply to."""
        reply = f"Reply to {to} with" if self.binding == "reply" else "Reply"
        number = f" {self.number}" if self.number else ""
        why = " The number names the question you answer." if number else ""
        if self.request.choices is not None:
            reply = f"Reply with{number} and" if number else f"{reply.removesuffix(' with')} with"
            return f"{reply} one of them, or in your own words.{why}"
        answers = [f"yes{number}", *([f"always{number}"] if self.request.shape else [])]
        answers += [f"outside{number} (of the sandbox)"] if self.request.outside else []
        return f"{reply} {', '.join(answers)}, or no{number} with a reason.{why}"


class Asking:
    """Asks questions in a chat, one at a time, and recognises the answers.

    Args:
        say: Sends a text and returns the keys of its messages.
        place: The turn's slot, freed while a question is pending.
        binding: How an answer is matched to its question; see `Binding`.
        unasked: The reason for refusing every question; "" to ask.
    """

    def __init__(
        self,
        say: Callable[[str], Awaitable[list[str]]],
        place: Slot,
        *,
        binding: Binding,
        unasked: str = "",
    ) -> None:
        self._say, self._place, self._binding, self.unasked = say, place, binding, unasked
        self.seconds = 600.0
        # Whether an earlier question was not answered. Its answer may still arrive, so an answer
        # must then contain its question's number or reply to it.
        self.lapsed = False
        self.refused = ""
        """The reason for refusals since the last reset."""
        self._one = asyncio.Lock()
        self._open: _Open | None = None

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Ask and return the answer; if none arrives in time, the request is denied."""
        if self.unasked:
            self.refused = self.unasked
            return Approval("deny", self.unasked)
        async with self._one:
            self._place.leave()
            answer = await self._answer(request)
            await self._place.take()
            return answer

    async def _answer(self, request: ApprovalRequest) -> Approval:
        named = self._binding == "number" or (self._binding == "order" and self.lapsed)
        number = str(1_000 + randbelow(9_000)) if named else ""
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        question = _Open(request, number, self._binding, set(), heard)
        self.lapsed = True  # until it is answered
        is_plain = request.choices is not None and self._binding == "order" and not number
        wanted = "" if is_plain else f"\n\n{question.wanted(THIS)}"
        self._open = question  # before it is sent: messages that arrive meanwhile get the reminder
        try:
            question.keys |= {*await self._say(f"{_question(request)}{wanted}")}
            question.sent.set()
            async with asyncio.timeout(self.seconds):
                answer = await heard
        except TimeoutError:
            await self._say(f"{LATE[0].upper()}{LATE[1:]}.")
            return Approval("deny", LATE)
        finally:
            self._open = None
            question.sent.set()
        self.lapsed = False
        return answer_of(answer, request)

    async def remind(self) -> None:
        """Explain again how to answer the pending question, after a message that doesn't."""
        question = self._open
        if question is None:
            return
        await question.sent.wait()
        if question is self._open and not question.answer.done():
            text = f"Please answer the question above first. {question.wanted(ITSELF)}"
            keys = await self._say(text)
            if self._binding != "reply":
                question.keys |= {*keys}

    def heard(self, message: Incoming) -> bool:
        """Accept a message as the answer to the pending question and return whether it is one."""
        question = self._open
        words = question.words(message) if question and not question.answer.done() else None
        if question is None or words is None:
            return False
        question.answer.set_result(words)
        return True


def _answer(text: str, word: str) -> str:
    """Return an approval without extra words, or the reason given with a denial.

    An approval with a condition is returned unchanged, so it does not count as one. A separate
    paragraph after it, such as a name in an email, is ignored.
    """
    rest = text.strip()[len(word) :]
    if word in ("n", "no"):
        return rest.strip(" .,!:") or word
    return word if BARE.fullmatch(rest.partition("\n\n")[0]) else text


def _question(request: ApprovalRequest) -> str:
    if request.choices is not None:
        listed = [f"{number}. {each}" for number, each in enumerate(request.choices, start=1)]
        return redact("\n".join([request.shown, *listed]))
    what = request.lasting.removesuffix(", until this kernel ends")
    lasts = f"\n`always` allows {what}, until /new or a restart." if request.shape and what else ""
    title = f"Hermes wants to use {request.tool.name}: {request.why}"
    return visible(f"{title}\n\n{code_block(request.shown)}\n{lasts}", lines=True)
