"""Calling for the pages that show a notebook, and choosing the one to talk to.

A page takes no notice of a comm that was opened before it was loaded, so a call is repeated until
somebody answers; a page that is being loaded may even close a comm that it has no handler for yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hermes_nb.notebook.bridge.channel import Channel, Info

GRACE = 0.25
"""Seconds that the first hello is kept waiting for one from the page that ran the cell."""
BUSY = 3.0
"""The same where that page has answered before: it may be drawing, or hidden behind another."""
PAUSES = (0.7, 3.0)
"""Seconds between two calls that nobody answers, at first and at most."""

Heard = tuple[Channel, Info]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """What is known before the call.

    `cell` is the running cell's id and `client` the connection that runs it; `last` names the page
    that answered last; `expected` says that the client's own page has answered before, `left` that
    it is known to be no more.
    """

    cell: str
    client: str
    last: str = ""
    expected: bool = False
    left: bool = False

    async def answer(
        self, hellos: asyncio.Queue[Heard], call: Callable[[], None], timeout: float
    ) -> Heard | None:
        """Call until somebody says hello; return the best of those who do so at about that time.

        None when nobody has within `timeout` seconds.
        """
        now = asyncio.get_running_loop().time
        best: Heard | None = None
        until, due, pause = now() + timeout, now(), PAUSES[0]
        while best is None or not self._settles(best[1]):
            if best is None and now() >= due:
                call()
                due, pause = now() + pause, min(pause * 1.5, PAUSES[1])
            try:
                async with asyncio.timeout_at(until if best else min(until, due)):
                    heard = await hellos.get()
            except TimeoutError:
                if now() >= until:
                    break
                continue
            if best is None:
                until = min(until, now() + self._grace)
            if best is None or self._rank(heard[1]) > self._rank(best[1]):
                best = heard
        return best

    @property
    def _grace(self) -> float:
        return BUSY if self.expected and not self.left else GRACE

    def _rank(self, info: Info) -> tuple[bool, bool, bool]:
        return info.holds or not self.cell, info.client == self.client, info.name == self.last

    def _settles(self, info: Info) -> bool:
        """Say whether nobody better is to be expected."""
        holds, same, known = self._rank(info)
        return holds and (same or (self.left and known))
