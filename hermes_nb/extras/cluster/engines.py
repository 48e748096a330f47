"""Run a map's tasks on ipyparallel engines: executor `ipyparallel[:PROFILE]`."""

from __future__ import annotations

import asyncio
import importlib
import math
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from hermes_nb.agent.fanout.executors import Crew, remote_all, unusable
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.threads import in_thread

ABORTED = 2.0
"""Seconds to wait for engines to confirm that unstarted tasks were aborted."""
TOGETHER = 0.1
"""Seconds that a task waits for others to join the same call."""
TICK = 0.01
"""Seconds by which a timer may fire too early."""
START = "start one with `ipcluster start -n 4`"


class Cluster(Crew):
    """A running ipyparallel cluster's engines; each task is tried once.

    An engine runs one call at a time, so several tasks are sent in one call, which runs up to
    `share` tasks concurrently.
    """

    def __init__(self, profile: str) -> None:
        try:
            ipyparallel: Any = importlib.import_module("ipyparallel")
        except ImportError as error:
            message = 'ipyparallel is not installed: pip install "hermes_nb[parallel]"'
            raise ConfigError(message) from error
        try:
            self._client = ipyparallel.Client(profile=profile or "default", timeout=10)
        except Exception as error:
            raise ConfigError(unusable("ipyparallel", error, START)) from error
        self.size = len(self._client.ids)
        if not self.size:
            self._client.close()
            raise ConfigError(f"the cluster has no engines; {START}")
        self._view = self._client.load_balanced_view()
        self._view.retries = 0
        self._aborted: type[BaseException] = ipyparallel.error.TaskAborted
        self._waiting: dict[Future[str], tuple[str, float]] = {}
        self._begun: dict[Future[str], Any] = {}
        self._busy = 0

    def submit(self, payload: str) -> Future[str]:
        """Submit a task; call it on the event loop that awaits the result."""
        loop = asyncio.get_running_loop()
        future: Future[str] = Future()
        self._waiting[future] = payload, loop.time() + TOGETHER
        loop.call_later(0 if len(self._waiting) >= self.share else TOGETHER, self._send)
        return future

    def _send(self) -> None:
        """Send full or overdue batches of pending tasks to idle engines."""
        loop = asyncio.get_running_loop()
        while self._waiting and (free := self.size - self._busy) > 0:
            waiting = list(self._waiting)
            if len(waiting) < self.share and loop.time() < self._waiting[waiting[0]][1] - TICK:
                return
            some = waiting[: min(self.share, math.ceil(len(waiting) / free))]
            payloads = [self._waiting.pop(each)[0] for each in some]
            sent = self._view.apply_async(remote_all, payloads)
            self._begun |= dict.fromkeys(some, sent)
            self._busy += 1
            sent.add_done_callback(partial(self._ended_there, loop, some))

    def _ended_there(
        self, loop: asyncio.AbstractEventLoop, some: list[Future[str]], sent: Future[list[str]]
    ) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing awaits the results
            loop.call_soon_threadsafe(self._ended, some, sent)

    def _ended(self, some: Sequence[Future[str]], sent: Future[list[str]]) -> None:
        self._busy -= 1
        error = sent.exception()
        for number, future in enumerate(some):
            del self._begun[future]
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(sent.result()[number])
        self._send()

    async def abandon(self, futures: Sequence[Future[str]]) -> list[Future[str]]:
        """Cancel pending and unstarted tasks; return the cancelled ones."""
        unsent = [future for future in futures if self._waiting.pop(future, None) is not None]
        sent = {self._begun[future] for future in futures if future in self._begun}
        if sent:
            await in_thread(self._client.abort, list(sent), block=False)
            await asyncio.wait([asyncio.wrap_future(each) for each in sent], timeout=ABORTED)
            await asyncio.sleep(0)  # let the done callbacks run on this loop
        ended = [future for future in futures if future.done() and future not in unsent]
        return unsent + [each for each in ended if isinstance(each.exception(), self._aborted)]

    def close(self) -> None:
        """Disconnect from the cluster, which keeps running."""
        self._client.close()
