"""What a click starts: on the kernel's loop, off it where it blocks, with one line of outcome.

A front end may deliver clicks on any thread (kernels with subshells do). Everything therefore
begins by going to the loop on which the panel was opened, where turns run as well; what reads files
or a database then goes to a thread, and only the loop touches widgets.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from hermes_nb.core.errors import HermesError
from hermes_nb.core.text import one_line
from hermes_nb.safety.redact import redact

logger = logging.getLogger(__name__)

TYPING = 0.3
"""Seconds without a key after which a search begins."""
QUERY = 500
"""Characters of what is typed into a line that are taken notice of."""
Work = Callable[[], "str | Awaitable[str]"]
"""What a click does; it returns what to say, or raises an error whose text says it."""
Say = Callable[[str, bool], None]
"""Shows one line of plain text; the second argument says whether it is an error."""


class Refused(HermesError):  # noqa: N818 - what happened to the click
    """What was asked for was not done; the text says why."""


class Actions:
    """Runs what was clicked, one after the other.

    `say` shows how it went and `after` is awaited then, both on `loop`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, say: Say, after: Callable[[], Awaitable[None]]
    ) -> None:
        self._loop = loop
        self._say = say
        self._after = after
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Work) -> None:
        """Do some work and show its outcome; return at once, on any thread."""
        self.start(lambda: self._perform(work))

    def start(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine on the loop; return at once, on any thread."""

        def on_loop() -> None:
            task = asyncio.ensure_future(_run(begin))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.call(on_loop)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function on the loop soon; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the kernel ends
            self._loop.call_soon_threadsafe(function)

    async def settled(self) -> None:
        """Wait until nothing of what was begun is going on."""
        await asyncio.sleep(0)
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Cancel what is going on."""
        for task in list(self._tasks):
            task.cancel()

    async def _perform(self, work: Work) -> None:
        async with self._one:
            try:
                done = work()
                said = await done if inspect.isawaitable(done) else done
            except (HermesError, OSError, ValueError) as error:
                self._say(told(error), True)  # noqa: FBT003 - see Say
            except Exception as error:
                logger.exception("a click in the panel failed")
                message = f"that failed, which is a fault of ours: {type(error).__name__}: {error}"
                self._say(one_line(redact(message), 300), True)  # noqa: FBT003 - see Say
            else:
                self._say(said, False)  # noqa: FBT003 - see Say
        await self._after()


class Pause:
    """Calls a function once, on the loop, when nothing has called this for `TYPING` seconds."""

    def __init__(self, actions: Actions, function: Callable[[], None]) -> None:
        self._actions = actions
        self._function = function
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, _change: object = None) -> None:
        """Begin to wait anew; from any thread."""
        self._actions.call(self._wait)

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(TYPING, self._function)


async def _run(begin: Callable[[], Awaitable[None]]) -> None:
    try:
        await begin()
    except Exception:  # of a refresh: the next one may do better
        logger.exception("the panel could not be brought up to date")


def told(error: Exception) -> str:
    """Return an error as one line."""
    text = str(error) or type(error).__name__
    return one_line(redact(text[:1].upper() + text[1:]), 300)
