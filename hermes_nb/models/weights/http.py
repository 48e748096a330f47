"""Weights from a URL, resumed where an earlier download stopped."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from concurrent.futures import Future, wait
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from hermes_nb.core.text import one_line
from hermes_nb.models.weights.partial import BLOCK, Partial, SourceError

ANSWER_SECONDS = 6.0
"""How long a server may take to answer at all, its name's look-up included."""
READ_SECONDS = 20.0
"""How long a server may pause within the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """A file behind HTTP(S), resumed with a Range request."""

    name: str
    url: str
    spare: int = 0
    answer_seconds: float = ANSWER_SECONDS

    def pour(self, into: Partial) -> None:
        """Read the rest of the file."""
        headers = {"User-Agent": "hermes_nb", "Accept-Encoding": "identity"}
        if into.done:
            headers["Range"] = f"bytes={into.done}-"
        with self._answer(urllib.request.Request(self.url, headers=headers), into) as answer:  # noqa: S310 - the scheme was checked
            if into.done and answer.status != HTTPStatus.PARTIAL_CONTENT:
                into.restart()
            _check(answer, into)
            while block := self._read(answer):
                into.write(block)
        if into.done < into.size:
            message = f"ended after {into.done:,} of {into.size:,} bytes"
            raise SourceError(message)

    def _answer(self, request: urllib.request.Request, into: Partial) -> Any:  # noqa: ANN401 - urllib's own
        """Open the URL in a thread of its own: a name's look-up knows no time limit and no stop."""
        future: Future[Any] = Future()
        threading.Thread(target=_open, args=(request, future), daemon=True).start()
        try:
            for _ in range(max(1, round(self.answer_seconds * 10))):
                into.announce()
                if wait([future], timeout=0.1).done:
                    return future.result()
        except (OSError, ValueError) as error:
            raise SourceError(_why(error)) from error
        except BaseException:
            future.add_done_callback(_discard)
            raise
        future.add_done_callback(_discard)
        message = f"no answer within {self.answer_seconds:g} s"
        raise SourceError(message)

    def _read(self, answer: Any) -> bytes:  # noqa: ANN401
        try:
            block: bytes = answer.read(BLOCK)
        except OSError as error:
            raise SourceError(_why(error)) from error
        return block


def _check(answer: Any, into: Partial) -> None:  # noqa: ANN401
    """Refuse at once what is not the file: a log-in page would be a wrong beginning for others."""
    expected = f"bytes {into.done}-{into.size - 1}/{into.size}" if into.done else str(into.size)
    field = "Content-Range" if into.done else "Content-Length"
    if answer.headers.get(field) != expected:
        message = f"is not the file: {field} is {answer.headers.get(field)!r}, not {expected!r}"
        raise SourceError(message)


def _open(request: urllib.request.Request, future: Future[Any]) -> None:
    try:
        future.set_result(urllib.request.urlopen(request, timeout=READ_SECONDS))  # noqa: S310
    except Exception as error:  # noqa: BLE001 - handed to whoever waits for the answer
        future.set_exception(error)


def _discard(future: Future[Any]) -> None:
    """Close an answer that nobody waits for any more."""
    if future.exception() is None:
        future.result().close()


def _why(error: Exception) -> str:
    """Return what went wrong on a connection, in one line."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    reason = getattr(error, "reason", None) or error
    return one_line(str(reason), 120) or type(error).__name__
