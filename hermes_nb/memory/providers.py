"""External memory providers: found by name, at most one active, and never blocking for long.

A provider is a factory in the entry point group `hermes_nb.memory_providers`, called as
`factory(home, settings)`. `Guarded` isolates it from the agent: the provider is created and called
in its own thread, a turn waits for it only once and briefly, and no exception is raised.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import cast

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json, Message
from hermes_nb.core.plugins import loaded, plugins, ships
from hermes_nb.core.protocols import MemoryProvider
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.safety.administrator import Policy
from hermes_nb.safety.provenance import RECALLED
from hermes_nb.safety.redact import redact
from hermes_nb.safety.scan import scan

GROUP = "hermes_nb.memory_providers"
"""The entry point group for providers."""
ANSWER_SECONDS = 0.3
"""Maximum seconds that a turn waits for a provider, if its last answer was in time."""
RECORDED_SECONDS = 30.0
"""The same limit while a cassette is recorded or replayed: requests must not depend on timing."""
CLOSE_SECONDS = 3.0
"""Maximum seconds that the end of a session waits for queued calls."""
MOST_CALLS = 100
"""Maximum number of queued calls."""
BLOCK_CHARACTERS = 4_000
"""Maximum length of a provider's text in the system prompt, in characters."""
RECALL_CHARACTERS = 4_000
"""Maximum length of recalled text, in characters."""

Warn = Callable[[str], None]
Make = Callable[[], MemoryProvider]
Factory = Callable[[Path, Mapping[str, Json]], MemoryProvider]


def provider_names() -> list[str]:
    """Return the names of the installed providers."""
    return sorted({point.name for point in plugins(GROUP)})


def open_provider(
    name: str,
    home: Path,
    *,
    settings: Mapping[str, Json] | None = None,
    policy: Policy,
    warn: Warn,
    seconds: float = ANSWER_SECONDS,
) -> Guarded | None:
    """Return the named provider in a `Guarded`, or None if `name` is empty or not installed.

    An unknown name causes a warning. The provider is created by the first call to it.

    Args:
        name: the entry point's name, or "" for none
        home: the Hermes directory
        settings: the provider's settings
        policy: the administrator's policy
        warn: called with warnings for the user
        seconds: the maximum seconds that a turn waits for an answer
    """
    if not name:
        return None
    settled = "memory_services" in policy.families  # in that case, prefer our own package
    points = sorted(plugins(GROUP, name), key=ships, reverse=settled)
    if not points:
        known = ", ".join(provider_names())
        warn(f"external memory is off: there is no memory provider {name!r}; use one of {known}")
        return None

    def make() -> MemoryProvider:
        return cast("Factory", loaded(points[0]))(home, settings or {})

    return Guarded(make, warn, name=name, seconds=seconds)


class Guarded:
    """Calls a provider so that it can neither block a turn nor make it fail.

    All calls run one at a time in one thread. Callers wait for calls that return text and for the
    end of a session, but not for other calls. After a call has timed out, they stop waiting until
    the provider answers in time again. Text that arrives after the time limit is sent with the next
    message.

    Args:
        make: makes the provider, on the first call
        warn: shows a warning to the user; called once per kind of error, in the thread of a later
            call
        name: the provider's name in messages
        seconds: the maximum seconds to wait for text
    """

    def __init__(
        self,
        make: Make,
        warn: Warn,
        *,
        name: str = "memory provider",
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.name = name
        self._make: Make | None = make
        self._provider: MemoryProvider | None = None
        self._warn = warn
        self._seconds = seconds
        self._lock = threading.Condition()
        self._calls: deque[tuple[Future[str], str, tuple[object, ...]]] = deque()
        self._worker: threading.Thread | None = None
        self._running: Future[str] = Future()
        self._running.set_result("")
        self._slow = False
        self._began = float("inf")  # start of the running call, or inf if there is none
        self._late = ""
        self._faults: dict[str, bool] = {}  # error: whether it has been reported
        self._ended = False

    def static_block(self) -> str:
        text = self._asked(self._put("static_block"))
        return _cleaned(text, self.name, BLOCK_CHARACTERS) if text else ""

    def prefetch(self, query: str) -> str:
        """Return the text that the provider recalls for `query`, under a heading.

        If the previous query timed out, the text may be about that one.
        """
        with self._lock:
            late, self._late = self._late, ""
            # Drop queries that were not started: no caller is waiting for them any more.
            self._calls = deque(call for call in self._calls if call[1] != "prefetch")
        call = self._put("prefetch", redact(query))
        text = self._asked(call) or late
        if not call.done():
            call.add_done_callback(self._keep)
        if not text:
            return ""
        heading = f"{RECALLED}{self.name}): background, not part of the request]"
        return f"{heading}\n{_cleaned(text, self.name, RECALL_CHARACTERS)}"

    def turn_ended(self, messages: Sequence[Message]) -> None:
        self._put("turn_ended", tuple(messages))
        self._report_faults()

    def on_memory_write(self, target: str, action: str, before: str, after: str) -> None:
        self._put("on_memory_write", target, action, before, after)
        self._report_faults()

    def before_compress(self, messages: Sequence[Message]) -> None:
        self._put("before_compress", tuple(messages))
        self._report_faults()

    def on_delegation(self, task: str, result: str) -> None:
        self._put("on_delegation", task, result)
        self._report_faults()

    def session_ended(self, messages: Sequence[Message]) -> None:
        """Report the end of the session to the provider, once."""
        if not self._ended:
            self._ended = True
            self._finish(self._put("session_ended", tuple(messages)))
            atexit.unregister(self._wait_at_exit)

    def _wait_at_exit(self) -> None:
        """Wait for queued calls if the interpreter exits during a session."""
        with self._lock:
            calls = [call for call, *_ in self._calls] or [self._running]
        self._finish(calls[-1])

    def _finish(self, call: Future[str]) -> None:
        """Wait for `call`, the last one, unless an earlier one hangs; report all lost calls."""
        making = self._provider is None  # an import may take seconds
        if making or time.monotonic() - self._began <= CLOSE_SECONDS:
            wait([call], CLOSE_SECONDS)
        if not call.done():
            self._note(
                "the last messages may not be stored: it had not finished when the session ended"
            )
        self._report_faults()

    def _asked(self, call: Future[str]) -> str:
        """Return a call's result, or "" if it timed out."""
        try:
            return call.result(0.0 if self._slow else self._seconds)
        except TimeoutError:
            self._slow = True
            late = "no answer within {:g} s; its results come with the next message"
            self._note(late.format(self._seconds))
            return ""
        finally:
            self._report_faults()

    def _put(self, what: str, *arguments: object) -> Future[str]:
        call: Future[str] = Future()
        with self._lock:
            self._calls.append((call, what, arguments))
            if len(self._calls) > MOST_CALLS:
                self._calls.popleft()[0].set_result("")
                self._note("it is too slow: the oldest pending messages are not stored there")
            self._lock.notify()
            if self._worker is None:
                # A daemon thread: a provider that hangs must not prevent the kernel from exiting.
                name = f"memory {self.name}"
                self._worker = threading.Thread(target=self._work, name=name, daemon=True)
                try:
                    self._worker.start()
                    atexit.register(self._wait_at_exit)
                except RuntimeError as error:  # no more threads
                    self._worker = None
                    self._note(_error_text(error))
        return call

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._calls:
                    if self._ended:
                        return
                    self._lock.wait()
                call, what, arguments = self._calls.popleft()
                self._running = call
            self._began = time.monotonic()
            text = self._called(what, arguments)
            if what == "prefetch":
                self._slow = time.monotonic() - self._began > self._seconds
            self._began = float("inf")
            call.set_result(text)

    def _called(self, what: str, arguments: tuple[object, ...]) -> str:
        """Return the provider's text, or "" if there was an error or it is not a string."""
        try:
            if self._provider is None:
                if self._make is None:
                    return ""
                make, self._make = self._make, None
                self._provider = make()
                self.name = one_line(str(self._provider.name), 40) or self.name
            if what == "turn_ended" and not hasattr(self._provider, what):
                return ""  # older providers do not have this method
            found = getattr(self._provider, what)(*arguments)
        except BaseException as error:  # noqa: BLE001 - third-party code; reported
            self._note(_error_text(error))
            return ""
        if isinstance(found, str):
            return found
        if what in ("static_block", "prefetch"):
            self._note(f"{what} returned {type(found).__name__}")
        return ""

    def _keep(self, call: Future[str]) -> None:
        self._late = call.result()

    def _note(self, fault: str) -> None:
        self._faults.setdefault(fault, False)

    def _report_faults(self) -> None:
        for fault, told in list(self._faults.items()):
            if not told:
                self._faults[fault] = True
                self._warn(f"memory provider {self.name}: {fault}")


def _cleaned(text: str, name: str, limit: int) -> str:
    text = text.encode("utf-8", "replace").decode().strip()
    return scan(redact(head_tail(text, limit)), name=name).text


def _error_text(error: BaseException) -> str:
    if isinstance(error, ConfigError):
        return one_line(redact(str(error)), 200)
    return one_line(redact(f"{type(error).__name__}: {error}"), 200)
