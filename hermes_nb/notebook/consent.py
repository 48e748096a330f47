"""Questions before a model is used that nobody named: a server found here, the built-in one.

Whoever listens on a known port of a shared machine may be anybody, so a server is offered with its
owner, and used once it is accepted. The built-in model's weights are fetched after a question, with
a bar while they come.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes_nb.agent.config import Settings
from hermes_nb.agent.models import found_servers, told
from hermes_nb.core.calls import in_thread
from hermes_nb.core.protocols import ChatModel
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.display.view import can_ask

if TYPE_CHECKING:
    from hermes_nb.models.local.weights import WeightsNeeded
    from hermes_nb.models.servers import Identity

Ask = Callable[[str], str | None]
BAR_SECONDS = 0.5
BAR_WIDTH = 30


async def offer_servers(settings: Settings, ask: Ask, declined: set[Identity]) -> bool:
    """Offer the servers found on this machine in one question; say whether one is new in use.

    Nothing is offered where a model is named or a server that was accepted answers. A yes is
    written into the home; a no is added to `declined`, whose servers are not offered again.
    """
    if settings.endpoint.named or settings.cassette == "replay":
        return False
    if await in_thread(lambda: found_servers(settings, known=True)):
        return False
    found = await in_thread(lambda: found_servers(settings, known=False))
    offered = [served for served in found if served.identity not in declined]
    if not offered:
        return False
    from hermes_nb.models.servers import remember

    lines = [f"  {number}. {told(served)}" for number, served in enumerate(offered, start=1)]
    question = "\n".join(
        [
            "No model is set up. Found on this machine:",
            *lines,
            "It would be sent what you ask and what your cells and files show. "
            f"Use which, now and later? [{'/'.join(str(n + 1) for n in range(len(lines)))}/N] ",
        ]
    )
    answer = (ask(question) or "").strip().lower()
    if len(offered) == 1 and answer in ("y", "yes"):
        answer = "1"
    if answer not in {str(number + 1) for number in range(len(offered))}:
        declined.update(served.identity for served in offered)
        return False
    await in_thread(lambda: remember(settings.home, [offered[int(answer) - 1].identity], ()))
    return True


async def have_weights(
    model: ChatModel,
    shell: Any,  # noqa: ANN401 - IPython's shell
    settings: Settings,
    note: Callable[[str], None],
) -> None:
    """See to it that an embedded model has its weights, and say once what it is.

    Asks before anything is downloaded; where nobody can answer, `HERMES_NB_FETCH_WEIGHTS=1` is the
    yes. Raises `ConfigError`, with the ways out, when the answer is no.
    """
    from hermes_nb.agent.models import embedded_notice

    notice = embedded_notice(model)
    if notice is None:
        return
    from hermes_nb.models.local.weights import WeightsNeeded, locate, shipped

    if await in_thread(locate) is None:
        needed = WeightsNeeded(shipped())
        if not settings.fetch_weights and not _agreed(shell, needed):
            raise needed
        await _fetch(updates=can_ask(shell))
    note(notice)


def _agreed(shell: Any, needed: WeightsNeeded) -> bool:  # noqa: ANN401
    if not can_ask(shell):
        return False
    question = (
        f"No model is set up. Fetch the small built-in one ({needed.megabytes} MB, once, from "
        f"{' or '.join(needed.sources)})? [y/N] "
    )
    return (ask_user(question) or "").lower() in ("y", "yes")


async def _fetch(*, updates: bool) -> None:
    """Download in a thread; a stop keeps what has arrived for the next try."""
    from hermes_nb.models.local.weights import fetch

    stop = threading.Event()
    bar = _Bar(updates=updates)
    try:
        await in_thread(lambda: fetch(progress=bar.at, stop=stop), name="hermes-weights")
    except asyncio.CancelledError:
        stop.set()
        raise
    finally:
        bar.close()


class _Bar:
    """A line that fills up, drawn from the downloading thread."""

    def __init__(self, *, updates: bool) -> None:
        self._updates = updates
        self._drawn = 0.0
        self._lock = threading.Lock()

    def at(self, done: int, total: int) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._updates or (done < total and now - self._drawn < BAR_SECONDS):
                return
            self._drawn = now
            filled = BAR_WIDTH * done // max(total, 1)
            bar = "█" * filled + "░" * (BAR_WIDTH - filled)
            text = f"\r{bar} {done / 1e6:.0f} of {total / 1e6:.0f} MB"
            print(text, end="", flush=True)  # noqa: T201 - a progress bar in the cell's output

    def close(self) -> None:
        if self._updates and self._drawn:
            print(flush=True)  # noqa: T201 - ends the bar's line
