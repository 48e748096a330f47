"""External memory providers: found by name, at most one active, and never in the way of a turn.

A provider is a factory under the entry point group `hermes_nb.memory_providers`, called as
`factory(home, settings)`. `Guarded` stands between it and the agent: a time limit, one call at a
time, a warning the first time something goes wrong, and nothing raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json, Message
from hermes_nb.core.plugins import plugins
from hermes_nb.core.protocols import MemoryProvider
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.safety.redact import redact
from hermes_nb.safety.scan import scan

GROUP = "hermes_nb.memory_providers"
CALL_SECONDS = 3.0
"""What a user waits for a provider at most, before a turn begins."""
BLOCK_CHARACTERS = 4_000
RECALL_CHARACTERS = 4_000

Warn = Callable[[str], None]
Result = TypeVar("Result")


def provider_names() -> list[str]:
    """Return the names of the providers that installed packages offer."""
    return sorted({point.name for point in plugins(GROUP)})


def open_provider(
    name: str, home: Path, *, settings: Mapping[str, Json] | None = None, warn: Warn
) -> Guarded | None:
    """Return the provider of that name, guarded; None for no name, or where there is none.

    A name that nobody has registered, or a provider that does not start, costs a warning.
    """
    if not name:
        return None
    points = plugins(GROUP, name)
    if not points:
        known = ", ".join(provider_names()) or "none is installed"
        warn(f"there is no external memory: there is no memory provider {name!r}; known: {known}")
        return None
    try:
        provider: MemoryProvider = points[0].load()(home, settings or {})
    except ConfigError as error:
        warn(f"there is no external memory: {error}")
        return None
    except Exception as error:  # noqa: BLE001 - somebody else's code, and memory is optional
        warn(f"memory provider {name!r} is off: {_told(error)}")
        return None
    return Guarded(provider, warn)


class Guarded:
    """A `MemoryProvider` that returns in time and never raises, around one that may do anything.

    Calls block for up to `seconds`: on an event loop, run them in a thread. While a call that came
    too late still runs, further ones are skipped. `warn` hears of the first fault of each kind.
    """

    def __init__(
        self, provider: MemoryProvider, warn: Warn, *, seconds: float = CALL_SECONDS
    ) -> None:
        self._provider = provider
        self._warn = warn
        self._seconds = seconds
        self._turn = threading.Lock()
        self._told: set[str] = set()
        self._name = ""
        self._ended = False

    @property
    def name(self) -> str:
        if not self._name:
            self._name = self._call("name", "") or "memory provider"
        return self._name

    def static_block(self) -> str:
        text = self._call("static_block", "")
        return _cleaned(text, self.name, BLOCK_CHARACTERS) if text else ""

    def prefetch(self, query: str) -> str:
        """Return what the provider recalls for a message, under a line that says what it is."""
        text = self._call("prefetch", "", query)
        if not text:
            return ""
        name = self.name
        heading = f"[From memory ({one_line(name, 40)}): background, not part of the request]"
        return f"{heading}\n{_cleaned(text, name, RECALL_CHARACTERS)}"

    def on_memory_write(self, target: str, action: str, before: str, after: str) -> None:
        self._call("on_memory_write", None, target, action, before, after)

    def before_compress(self, messages: Sequence[Message]) -> None:
        self._call("before_compress", None, tuple(messages))

    def on_delegation(self, task: str, result: str) -> None:
        self._call("on_delegation", None, task, result)

    def session_ended(self, messages: Sequence[Message]) -> None:
        """Pass on the end of the session, once."""
        if not self._ended:
            self._ended = True
            self._call("session_ended", None, tuple(messages))

    def _call(self, what: str, default: Result, *arguments: object) -> Result:
        """Return what the provider says in time and in kind, else the default."""
        if not self._turn.acquire(timeout=self._seconds):
            self._complain(what, "still busy with an earlier call")
            return default
        results: list[Result] = []
        faults: list[BaseException] = []

        def run() -> None:
            try:
                found = getattr(self._provider, what)
                results.append(found(*arguments) if callable(found) else found)
            except BaseException as error:  # noqa: BLE001 - somebody else's code; told below
                faults.append(error)
            finally:
                self._turn.release()

        # A daemon: a provider that hangs must not keep the kernel from ending.
        worker = threading.Thread(target=run, name=f"memory {what}", daemon=True)
        try:
            worker.start()
        except RuntimeError as error:  # no more threads
            self._turn.release()
            self._complain(what, _told(error))
            return default
        worker.join(self._seconds)
        if faults:
            self._complain(what, _told(faults[0]))
        elif not results:
            self._complain(what, f"no answer within {self._seconds:g} s")
        elif not isinstance(results[0], type(default)):
            self._complain(what, f"returned {type(results[0]).__name__}")
        else:
            return results[0]
        return default

    def _complain(self, what: str, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            self._warn(f"the memory provider's {what} failed, going on without it: {why}")


def _cleaned(text: str, name: str, limit: int) -> str:
    text = text.encode("utf-8", "replace").decode().strip()
    return scan(redact(head_tail(text, limit)), name=name).text


def _told(error: BaseException) -> str:
    return one_line(redact(f"{type(error).__name__}: {error}"), 200)
