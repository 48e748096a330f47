"""Where a map's tasks run: here, on an ipyparallel cluster, or on anybody's `Executor`.

A name says which: `threads` (side by side in this process), `ipyparallel[:PROFILE]`, the name of an
entry point in the group `hermes_nb.executors`, or `package.module:factory`. Factories take nothing
and return a `concurrent.futures.Executor`.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from importlib.metadata import entry_points
from typing import Any, Protocol

from hermes_nb.app.maps.task import remote
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import one_line
from hermes_nb.safety.redact import redact

GROUP = "hermes_nb.executors"
HERE = "threads"
CLUSTER = "ipyparallel"
PROCESSES = 4
ABORTED = 2.0
"""Seconds that engines have to say that a task was aborted before it began."""


class Crew(Protocol):
    """Does tasks elsewhere. `size` is how many it does at a time."""

    size: int

    def submit(self, payload: str) -> Future[str]:
        """Hand a task over."""
        ...

    async def abandon(self, futures: Sequence[Future[str]]) -> list[Future[str]]:
        """Call tasks back; return those that surely had not begun."""
        ...

    def close(self) -> None:
        """Let go of what was opened here; the workers stay."""
        ...


async def open_crew(name: str) -> Crew | None:
    """Return who does the tasks, None for this process; raise `ConfigError`."""
    if name == HERE:
        return None
    kind, _, profile = name.partition(":")
    if kind == CLUSTER:
        return await in_thread(lambda: Cluster(profile))  # type: ignore[no-any-return]
    factory = _factory(name)
    try:
        executor = await in_thread(factory)
    except Exception as error:  # somebody else's code
        raise ConfigError(_why(name, error)) from error
    if not isinstance(executor, Executor):
        message = f"{name} made {type(executor).__name__}, which is no concurrent.futures.Executor"
        raise ConfigError(message)
    return Pool(executor)


def processes() -> Executor:
    """Return processes of this machine, started afresh: a fork would share what runs here."""
    return ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))


class Pool:
    """Any executor; it was made for this map, and ends with it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        workers = getattr(executor, "_max_workers", None)  # all of the standard library have it
        self.size = workers if isinstance(workers, int) and workers > 0 else 4

    def submit(self, payload: str) -> Future[str]:
        """Hand a task over."""
        return self._executor.submit(remote, payload)

    async def abandon(self, futures: Sequence[Future[str]]) -> list[Future[str]]:
        """Cancel tasks; one that runs cannot be."""
        return [future for future in futures if future.cancel()]

    def close(self) -> None:
        """Begin no more tasks; those that run come to their end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Cluster:
    """The engines of a running ipyparallel cluster; each task is tried once."""

    def __init__(self, profile: str) -> None:
        try:
            ipyparallel: Any = importlib.import_module("ipyparallel")
        except ImportError as error:
            message = 'ipyparallel is not installed: pip install "hermes_nb[parallel]"'
            raise ConfigError(message) from error
        try:
            self._client = ipyparallel.Client(profile=profile or "default", timeout=10)
        except Exception as error:
            raise ConfigError(_why(CLUSTER, error, START)) from error
        self.size = len(self._client.ids)
        if not self.size:
            self._client.close()
            message = f"the cluster has no engines; {START}"
            raise ConfigError(message)
        self._view = self._client.load_balanced_view()
        self._view.retries = 0
        self._aborted: type[BaseException] = ipyparallel.error.TaskAborted

    def submit(self, payload: str) -> Future[str]:
        """Hand a task over."""
        future: Future[str] = self._view.apply_async(remote, payload)
        return future

    async def abandon(self, futures: Sequence[Future[str]]) -> list[Future[str]]:
        """Have engines abort tasks; a result's own `cancel` would only forget them."""
        if not futures:
            return []
        await in_thread(lambda: self._client.abort(list(futures), block=False))
        waits = [asyncio.wrap_future(future) for future in futures]
        await asyncio.wait(waits, timeout=ABORTED)
        for wait in waits:
            if wait.done() and not wait.cancelled():
                wait.exception()  # it has been looked at
        return [f for f in futures if f.done() and isinstance(f.exception(), self._aborted)]

    def close(self) -> None:
        """Leave the cluster; it goes on running."""
        self._client.close()


START = "start one with `ipcluster start -n 4`"


def _factory(name: str) -> Callable[[], Any]:
    for point in entry_points(group=GROUP, name=name):
        try:
            return point.load()  # type: ignore[no-any-return]
        except Exception as error:  # somebody else's code, run at their import
            raise ConfigError(_why(name, error)) from error
    module, _, attribute = name.partition(":")
    known = [HERE, CLUSTER, *(point.name for point in entry_points(group=GROUP))]
    if not attribute:
        message = f"there is no executor {name!r}; use {', '.join(known)} or package:factory"
        raise ConfigError(message)
    try:
        factory: Callable[[], Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(_why(name, error)) from error
    return factory


def _why(name: str, error: BaseException, hint: str = "") -> str:
    told = one_line(redact(f"{type(error).__name__}: {error}"), 200)
    return f"the executor {name} cannot be used: {told}" + (f"; {hint}" if hint else "")
