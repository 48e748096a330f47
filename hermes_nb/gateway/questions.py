"""Questions of a turn in a chat: put as messages, answered by the next one that fits.

A turn has one of the places of those that run side by side. While its question waits for a person,
that is another chat's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from hermes_nb.agent.approvals import answer_of
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.text import visible
from hermes_nb.safety.markup import code_block
from hermes_nb.safety.redact import redact

YES_OR_NO = frozenset("y yes n no a always o outside".split())
BARE = re.compile(r"\W*(?:(?:please|thanks|thank you|go ahead)\W*)?", re.IGNORECASE)
"""What may stand behind a yes."""
LATE = "nobody answered in time, so it was not run"


class Place:
    """One of the places of turns that run side by side, while it is taken."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places, self._taken = places, False

    async def take(self) -> None:
        """Wait for a place."""
        await self._places.acquire()
        self._taken = True

    def leave(self) -> None:
        """Give it up, where it is taken."""
        if self._taken:
            self._taken = False
            self._places.release()


class Asking:
    """Puts questions into a chat, one at a time."""

    def __init__(self, say: Callable[[str], Awaitable[None]], seconds: float, place: Place) -> None:
        self._say, self._seconds, self._place = say, seconds, place
        self._one = asyncio.Lock()
        self._open: tuple[asyncio.Future[str], ApprovalRequest] | None = None

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the answer; none in time is a no."""
        async with self._one:
            self._place.leave()
            answer = await self._answer(request)
            await self._place.take()
            return answer

    async def _answer(self, request: ApprovalRequest) -> Approval:
        await self._say(_question(request))
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._open = heard, request
        try:
            async with asyncio.timeout(self._seconds):
                return answer_of(await heard, request)
        except TimeoutError:
            await self._say(f"{LATE[0].upper()}{LATE[1:]}.")
            return Approval("deny", LATE)
        finally:
            self._open = None

    async def remind(self) -> None:
        """Say what an open question wants to hear, to whoever wrote something else."""
        if self._open is not None and not self._open[0].done():
            await self._say(f"This waits for the question above. {_reply(self._open[1])}")

    def heard(self, text: str) -> bool:
        """Take a message as the answer to the question that is open, if it is one."""
        if self._open is None or self._open[0].done() or text.lstrip().startswith("/"):
            return False
        future, request = self._open
        word = (text.lower().split(maxsplit=1) or [""])[0].rstrip(".,!:")
        if request.choices is None and word not in YES_OR_NO:
            return False
        future.set_result(text.strip() if request.choices is not None else _answer(text, word))
        return True


def _answer(text: str, word: str) -> str:
    """Return a bare yes, or a no with what was said behind it.

    A yes with a condition is none; below it, as in a mail, may stand a name.
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
    what = what.removesuffix(", without a question")
    lasts = f"\n`always` allows {what}, until /new or a restart." if request.shape and what else ""
    title = f"Hermes wants to use {request.tool.name}: {request.why}"
    told = visible(f"{title}\n\n{code_block(request.shown)}\n{lasts}", lines=True)
    return f"{told}\n\n{_reply(request)}"


def _reply(request: ApprovalRequest) -> str:
    if request.choices is not None:
        return "Reply with one of them, or in your own words."
    answers = ["yes", *(["always"] if request.shape else [])]
    answers += ["outside (of the sandbox)"] if request.outside else []
    return f"Reply {', '.join(answers)}, or no and why not."
