"""A cassette's file: recorded replies as lines, and which of them comes next.

A line holds one JSON object, keys sorted. A recording has a `key`; a message of a conversation has
an `at` (its digest) and the digest before it, so that a conversation lies in the file once, however
many requests it took. Nothing in a line depends on when or where it was written. Several threads
may use one file, and several processes. Two branches that each added recordings merge by
concatenation: the order of lines matters only among recordings of one request.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hermes_nb.core.errors import HermesError
from hermes_nb.core.events import ReasoningDelta, TextDelta
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.messages import Message, Reply, Text, ToolCall, Usage
from hermes_nb.core.text import canonical_json, clean, clean_text
from hermes_nb.models.canonical import FORM, Canonical, Link, counted_digest, digest_of, redacted
from hermes_nb.models.volatile import Named
from hermes_nb.safety.redact import redact

Piece = TextDelta | ReasoningDelta
Change = Callable[[str], str]
_KINDS: dict[type[Piece], str] = {TextDelta: "text", ReasoningDelta: "reasoning"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A reply to the request of that `key`; `head` is its conversation, `tools` what was offered.

    `model`, `window` (in tokens) and `version` (of hermes_nb) are facts: they are no part of the
    key. `pieces` are the deltas as they came. `nth` counts the same requests of one run from 1,
    `form` is that of the key. `edited` says that the line is not as it was written.
    """

    key: str
    head: str
    tools: frozenset[str]
    choice: str
    model: str
    window: int | None
    version: str
    reply: Reply
    pieces: tuple[Piece, ...]
    nth: int = 1
    form: int = FORM
    edited: bool = False

    @classmethod
    def of(
        cls,
        canonical: Canonical,
        reply: Reply,
        pieces: Sequence[Piece],
        *,
        model: str,
        window: int | None,
    ) -> Recording:
        """Return what is to be written of a reply: without secrets, this run's things as tokens."""

        def packed(text: str) -> str:
            return canonical.named.pack(redact(clean_text(text)))

        return cls(
            key=canonical.key,
            head=canonical.head,
            tools=canonical.tools,
            choice=canonical.choice,
            model=model,
            window=window,
            version=own_version(),
            reply=replace(reply, message=_changed(reply.message, packed, secrets=True)),
            pieces=recut(pieces, packed),
        )

    def played(self, named: Named) -> tuple[tuple[Piece, ...], Reply]:
        """Return the deltas and the reply for a run that names things so."""
        message = _changed(self.reply.message, named.unpack)
        return recut(self.pieces, named.unpack), replace(self.reply, message=message)

    def fits(self, now: Canonical) -> bool:
        """Say whether the calls of the reply can be made as they could then."""
        return not self.gone(now) and not (now.choice == "none" and self.reply.message.calls)

    def gone(self, now: Canonical) -> list[str]:
        """Return the tools that the reply calls and that are offered no more."""
        called = {call.name for call in self.reply.message.calls}
        return sorted(called & self.tools - now.tools)

    def nearness(self, now: Canonical) -> tuple[bool, bool, int]:
        """Return how alike the rest of the request is, where the same was said: more is nearer."""
        return self.head == now.head, self.choice == now.choice, -len(self.tools ^ now.tools)

    def line(self) -> bytes:
        """Return the recording as a line, without its end."""
        return _summed(
            {
                "form": self.form,
                "key": self.key,
                "head": self.head,
                "tools": sorted(self.tools),
                **({} if self.choice == "auto" else {"choice": self.choice}),
                **({} if self.nth == 1 else {"nth": self.nth}),
                "model": self.model,
                "window": self.window,
                "hermes_nb": self.version,
                "deltas": [
                    each.text if isinstance(each, TextDelta) else {"reasoning": each.text}
                    for each in self.pieces
                ],
                "reply": {
                    "message": self.reply.message.to_dict(),
                    "usage": {
                        name: value
                        for name, value in asdict(self.reply.usage).items()
                        if value not in (0, None)
                    },
                    "finish": self.reply.finish,
                    "model": self.reply.model,
                },
            }
        )


def accepted(line: bytes) -> bytes:
    """Return a recording's line as it would be, had it been recorded so."""
    return _summed(json.loads(line))


def _summed(data: Mapping[str, object]) -> bytes:
    return _line({**data, "sum": _sum(data)})


def _sum(data: Mapping[str, object]) -> str:
    """Return what tells whether somebody edited a recording."""
    return digest_of(clean({name: data[name] for name in data if name != "sum"}))[:16]


def link_line(link: Link) -> bytes:
    """Return a message of a conversation as a line, without its end."""
    return _line({"at": link.digest, "before": link.before, "said": link.said})


def read(line: bytes) -> Recording | Link:
    """Return what a line holds; raise ValueError, with what is wrong, for anything else."""
    try:
        data = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        message = "it is no UTF-8"
        raise ValueError(message) from error
    except RecursionError as error:
        message = "it is nested too deeply"
        raise ValueError(message) from error
    if not isinstance(data, dict):
        message = "it is no JSON object"
        raise ValueError(message)  # noqa: TRY004 - all that is wrong with a line is one error
    try:
        if "key" in data:
            return _recording(data)
        return Link(_text(data, "at"), _text(data, "before"), _mapping(data, "said"))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"it is no recording ({type(error).__name__}: {error})"
        raise ValueError(message) from error


def recut(pieces: Sequence[Piece], change: Change) -> tuple[Piece, ...]:
    """Return deltas whose joined text went through `change`, cut where they were cut.

    Each kind of delta is one text, since what is changed may lie across a cut. A text that stays
    the same keeps its cuts; one that grows has the rest in its last delta.
    """
    texts = {kind: "".join(p.text for p in pieces if isinstance(p, kind)) for kind in _KINDS}
    left = {kind: change(text) for kind, text in texts.items()}
    last = {type(piece): at for at, piece in enumerate(pieces)}
    out: list[Piece] = []
    for at, piece in enumerate(pieces):
        kind = type(piece)
        size = len(left[kind]) if last[kind] == at else len(piece.text)
        text, left[kind] = left[kind][:size], left[kind][size:]
        if text or not piece.text:
            out.append(kind(text))
    return tuple(out)


@functools.cache
def own_version() -> str:
    """Return the installed version of hermes_nb, "" where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("hermes_nb")
    except PackageNotFoundError:
        return ""


def _changed(message: Message, change: Change, *, secrets: bool = False) -> Message:
    """Return a message whose every text went through `change`."""
    return replace(
        message,
        parts=tuple(
            replace(p, text=change(p.text)) if isinstance(p, Text) else p for p in message.parts
        ),
        calls=tuple(_changed_call(call, change, secrets=secrets) for call in message.calls),
        reasoning=change(message.reasoning),
        echo=redacted(clean(message.echo)) if secrets else message.echo,
    )


def _changed_call(call: ToolCall, change: Change, *, secrets: bool) -> ToolCall:
    """Return a call whose texts went through `change`; its JSON stays what the arguments are."""
    before = clean(call.arguments)
    arguments = _deep(redacted(before) if secrets else before, change)
    text = change(call.text)
    if call.text and not call.problem and (arguments != before or text != call.text):
        text = json.dumps(arguments, ensure_ascii=False)
    return replace(call, name=change(call.name), arguments=arguments, text=text)


def _deep(value: Any, change: Change) -> Any:  # noqa: ANN401 - any JSON value
    match value:
        case str():
            return change(value)
        case dict():
            return {change(key): _deep(item, change) for key, item in value.items()}
        case list():
            return [_deep(item, change) for item in value]
        case _:
            return value


def _recording(data: Mapping[str, Any]) -> Recording:
    reply = _mapping(data, "reply")
    message = Message.from_dict(_mapping(reply, "message"))
    _check(message)
    message = replace(message, calls=tuple(map(_as_written, message.calls)))
    window, nth, form = data.get("window"), data.get("nth", 1), data.get("form", 1)
    return Recording(
        key=_text(data, "key"),
        head=_text(data, "head"),
        tools=frozenset(map(str, data["tools"])),
        choice=str(data.get("choice", "auto")),
        model=str(data.get("model", "")),
        window=window if isinstance(window, int) and window > 0 else None,
        version=str(data.get("hermes_nb", "")),
        reply=Reply(
            message=message,
            usage=_usage(reply.get("usage", {})),
            finish=str(reply.get("finish", "stop")),
            model=str(reply.get("model", "")),
        ),
        pieces=tuple(_piece(each) for each in data.get("deltas", ())),
        nth=nth if isinstance(nth, int) else 1,
        form=form if isinstance(form, int) else 1,
        edited=form != 1 and data.get("sum") != _sum(data),
    )


def _as_written(call: ToolCall) -> ToolCall:
    """Return a call whose arguments stand in the order of its text, which a line's keys have not.

    A cell shows them in that order.
    """
    try:
        written = json.loads(call.text or "null")
    except (ValueError, RecursionError):
        return call
    return replace(call, arguments=written) if written == call.arguments else call


def _piece(data: object) -> Piece:
    if isinstance(data, str):
        return TextDelta(data)
    if isinstance(data, Mapping):
        return ReasoningDelta(_text(data, "reasoning"))
    message = f"a delta is {data!r:.40}"
    raise TypeError(message)


def _usage(data: Mapping[str, Any]) -> Usage:
    known = {each.name for each in fields(Usage)}
    for name, value in data.items():
        good = isinstance(value, int | float if name == "cost" else int)
        if name not in known or not good or isinstance(value, bool) or not 0 <= value < math.inf:
            message = f"usage.{name} is {value!r:.40}"
            raise TypeError(message)
    return Usage(**data)


def _check(message: Message) -> None:
    """Raise TypeError unless the message is one that a model can have given."""
    texts = [p.text for p in message.parts if isinstance(p, Text)]
    texts += [message.reasoning, *(t for c in message.calls for t in (c.id, c.name, c.text))]
    if message.role != "assistant" or len(texts) < len(message.parts):
        problem = "its message is no text of an assistant"
        raise TypeError(problem)
    objects = [message.echo, *(call.arguments for call in message.calls)]
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(each, Mapping) for each in objects
    ):
        problem = "its message has texts that are none"
        raise TypeError(problem)


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str):
        message = f"{name} is {value!r:.40}"
        raise TypeError(message)
    return value


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data[name]
    if not isinstance(value, Mapping):
        message = f"{name} is {value!r:.40}"
        raise TypeError(message)
    return value


def _line(data: Mapping[str, Any]) -> bytes:
    return canonical_json(clean(data)).encode()


LARGEST = 512 * 2**20
"""Bytes of a file that is read: far beyond any notebook's, below what would hurt a kernel."""


@dataclass(slots=True)
class Reel:
    """Recordings by their lines, in order; messages by their digests; what could not be read.

    `by_said` has the recordings of form 1 by what was said in the messages that they hold.
    """

    made: dict[bytes, Recording] = field(default_factory=dict)
    by_key: dict[str, list[bytes]] = field(default_factory=dict)
    by_said: dict[str, list[bytes]] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    edited: dict[bytes, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, files: Iterable[Path]) -> Reel:
        """Return what is in the files; what is wrong with one of them is a problem."""
        reel = cls()
        for file in files:
            try:
                lines = lines_of(file)
            except OSError as error:
                reel.problems.append(f"{file.name}: {error.strerror or error}")
                continue
            for number, line in enumerate(lines, 1):
                reel.take(line, f"{file.name}, line {number}")
        reel.key_anew()
        return reel

    def take(self, line: bytes, where: str = "") -> None:
        """Read a line; a damaged one becomes a problem, a second copy is nothing new."""
        if line in self.made or not line.strip():
            return
        try:
            thing = read(line)
        except ValueError as error:
            self.problems.append(f"{where}: {error}")
            return
        if isinstance(thing, Link):
            self.links.setdefault(thing.digest, thing)
            return
        self.made[line] = thing
        if thing.edited:
            self.edited[line] = where
        lines = self.by_key.setdefault(thing.key, [])
        lines.append(line)
        if len(lines) > 1:  # in the order of their run, and then in the file's
            lines.sort(key=lambda each: self.made[each].nth)

    def key_anew(self) -> None:
        """Key the recordings of form 1 by what was said in the messages that they hold."""
        digests = {digest: counted_digest(link.said) for digest, link in self.links.items()}
        for line, made in self.made.items():
            links = self.conversation(made) if made.form == 1 else []
            if links and not links[0].before:
                said = digest_of([each for link in links if (each := digests[link.digest])])
                self.by_said.setdefault(said, []).append(line)

    def find(self, now: Canonical) -> list[bytes]:
        """Return the lines that answer a request, in the order of their run."""
        return [*self.by_said.get(now.said, ()), *self.by_key.get(now.key, ())]

    def conversation(self, recording: Recording) -> list[Link]:
        """Return the messages that a recording answered, as far as they are there, in order."""
        out: dict[str, Link] = {}
        link = self.links.get(recording.head)
        while link is not None and link.digest not in out:
            out[link.digest] = link
            link = self.links.get(link.before)
        return list(out.values())[::-1]

    def needed(self, used: set[bytes]) -> set[str]:
        """Return the digests of the messages that these recordings answered."""
        needed: set[str] = set()
        for line, made in self.made.items():
            link = self.links.get(made.head) if line in used else None
            while link is not None and link.digest not in needed:
                needed.add(link.digest)
                link = self.links.get(link.before)
        return needed


def lines_of(path: Path) -> list[bytes]:
    """Return a file's lines without their ends; [] where there is no file.

    Only a line feed ends a line. Raises OSError for what is no regular file, or is far too large.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return []
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        message = "it is not a regular file, or too large"
        raise OSError(message)
    lines = path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


ACCEPT = (
    "accept it with `%hermes cassette accept`, `pytest --hermes-accept` or "
    "`jupyter hermes run --cassette replay --accept`, or record it anew"
)
_Stamp = tuple[int, int, int]


class CassetteError(HermesError):
    """A cassette cannot be used; the text says which and what to do."""


class Tape:
    """The recordings of one file and, to be read only, of those in `also`.

    `private` files are made for their owner alone. A run begins with the tape, or with `rewind`:
    within it the recordings of one request are played in order, the last one again and again, and
    what is recorded takes the place of what earlier runs had recorded for the same request.
    """

    def __init__(self, path: Path, *, also: Sequence[Path] = (), private: bool = False) -> None:
        self.path = path
        self._also = tuple(each for each in also if each != path)
        self._private = private
        self._lock = threading.RLock()
        self._reel = Reel()
        self._stamps: tuple[_Stamp, ...] | None = None
        self._played: Counter[str] = Counter()
        self._used: set[bytes] = set()
        self._old: set[bytes] | None = None

    @property
    def problems(self) -> list[str]:
        """What could not be read, each with its file and line."""
        with self._lock:
            return list(self._fresh().problems)

    @property
    def recordings(self) -> list[Recording]:
        """All the recordings, in order."""
        with self._lock:
            return list(self._fresh().made.values())

    @property
    def used(self) -> int:
        """How many recordings this run has played or made."""
        with self._lock:
            return len(self._used)

    def rewind(self) -> None:
        """Begin another run."""
        with self._lock:
            self._played.clear()
            self._used.clear()
            self._old = None

    def next(self, now: Canonical) -> Recording | None:
        """Return the recording of a request whose turn it is, None when there is none.

        Raises `CassetteError` when it was edited and nobody accepted that.
        """
        with self._lock:
            lines = self._nearest(now)
            if not lines:
                return None
            line = next((each for each in lines if each not in self._used), lines[-1])
            if line in self._reel.edited:
                message = f"{self._reel.edited[line]}: the answer was edited; {ACCEPT}"
                raise CassetteError(message)
            self._played[now.key] += 1
            self._used.add(line)
            return self._reel.made[line]

    def _nearest(self, now: Canonical) -> list[bytes]:
        """Return the lines that answer a request; of several, those whose rest is most alike."""
        reel = self._fresh()
        lines = [line for line in reel.find(now) if reel.made[line].fits(now)]
        near = {line: reel.made[line].nearness(now) for line in lines}
        return [line for line in lines if near[line] == max(near.values())]

    def conversation(self, recording: Recording) -> list[Link]:
        """Return the messages that a recording answered, as far as they are there, in order."""
        with self._lock:
            return self._fresh().conversation(recording)

    def ready(self) -> None:
        """See to it that the file can be written, before a reply is paid for.

        Raises `CassetteError`.
        """
        try:
            if self._private:
                make_private(self.path.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() or self.path.is_symlink():
                os.close(self._open())
            elif not os.access(self.path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, recording: Recording, canonical: Canonical) -> None:
        """Write a recording, and of its conversation what is not there yet.

        Raises `CassetteError`, and then the file is as it was.
        """
        with self._lock:
            reel = self._fresh()
            if self._old is None:  # what was there before this run recorded anything
                self._old = set(reel.made)
            instead = self._old.intersection(self._nearest(canonical))
            nth = self._played[recording.key] + 1
            line = replace(recording, nth=nth).line()
            links = [link_line(link) for link in canonical.links if link.digest not in reel.links]
            try:
                with locked(self._guarded()):
                    self._write([*links, line], instead)
            except OSError as error:  # TimeoutError is one
                raise self._unwritable(error) from error
            self._old -= instead
            self._played[recording.key] = nth
            self._used.add(line)

    def unused(self) -> list[Recording]:
        """Return the recordings of the tape's own file that this run had no use for."""
        with self._lock:
            reel = self._fresh()
            own = set(lines_of(self.path)) if self._also else reel.made.keys()
            return [m for line, m in reel.made.items() if line in own and line not in self._used]

    def prune(self) -> int:
        """Take what this run had no use for out of the file; return how many recordings that was.

        Damaged lines, copies, and messages of no remaining conversation go as well. Raises
        `CassetteError`, and then the file is as it was.
        """
        with self._lock:
            try:
                os.close(self._open())
                with locked(self._guarded()):
                    lines = dict.fromkeys(lines_of(self.path))
                    own = Reel()
                    for line in lines:
                        own.take(line)
                    needed = own.needed(self._used)
                    kept = [x for x in lines if x in self._used or _digest(x, own) in needed]
                    write_atomic(self.path, _joined(kept))
            except OSError as error:
                raise self._unwritable(error) from error
            self._stamps = None
            return len(own.made.keys() - self._used)

    def accept(self) -> int:
        """Let the answers of the file count as they were edited; return how many that was.

        Raises `CassetteError`, and then the file is as it was.
        """
        with self._lock:
            edited = self._fresh().edited
            if not edited:
                return 0
            try:
                with locked(self._guarded()):
                    lines = lines_of(self.path)
                    new = [accepted(line) if line in edited else line for line in lines]
                    write_atomic(self.path, _joined(new))
            except OSError as error:
                raise self._unwritable(error) from error
            self._stamps = None
            return sum(line in edited for line in lines)

    def _fresh(self) -> Reel:
        """Return what the files hold, read again if any of them is another than before."""
        stamps = tuple(map(_stamp, (self.path, *self._also)))
        if stamps != self._stamps:
            self._reel, self._stamps = Reel.of((self.path, *self._also)), stamps
        return self._reel

    def _write(self, data: Sequence[bytes], instead: set[bytes]) -> None:
        """Put lines where the old ones stand that they replace, or else at the end of the file."""
        lines = lines_of(self.path) if instead else []
        place = next((at for at, line in enumerate(lines) if line in instead), None)
        if place is None:
            before = self._append(_joined(data))
            if self._stamps is not None and self._stamps[0][1] == before:  # nobody else's lines
                for line in data:
                    self._reel.take(line)
                self._stamps = (_stamp(self.path), *self._stamps[1:])
            return
        kept = [[x for x in part if x not in instead] for part in (lines[:place], lines[place:])]
        os.close(self._open())
        write_atomic(self.path, _joined([*kept[0], *data, *kept[1]]))

    def _append(self, data: bytes) -> int:
        """Write whole lines at the end and return the size before; a torn line there is ended."""
        handle = self._open()
        try:
            size = os.lseek(handle, 0, os.SEEK_END)
            if size:
                os.lseek(handle, size - 1, os.SEEK_SET)
                data = data if os.read(handle, 1) == b"\n" else b"\n" + data
            try:
                _write_whole(handle, data)
            except OSError:
                os.ftruncate(handle, size)
                raise
            return size
        finally:
            os.close(handle)

    def _open(self) -> int:
        """Open the file to add to it; a link could lead anywhere, so it is refused."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, name, 0)
        handle = os.open(self.path, flags, 0o600 if self._private else 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            message = "it is not a regular file"
            raise OSError(message)
        return handle

    def _guarded(self) -> Path:
        """Return the path whose lock is this file's, so that the lock file is a hidden one."""
        return self.path.with_name(f".{self.path.name}")

    def _unwritable(self, error: OSError) -> CassetteError:
        return CassetteError(
            f"the cassette {str(self.path)!r} cannot be written: {error.strerror or error}; "
            "HERMES_NB_CASSETTE_FILE names another, `%hermes cassette off` goes on without one"
        )


def _write_whole(handle: int, data: bytes) -> None:
    """Write everything, durably; raise OSError where only a part had room."""
    if os.write(handle, data) < len(data):
        message = "the disk is full"
        raise OSError(message)
    os.fsync(handle)


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines if line.strip())


def _digest(line: bytes, reel: Reel) -> str:
    """Return the digest of a line that is a message, "" for any other."""
    if line in reel.made:
        return ""
    try:
        thing = read(line)
    except ValueError:
        return ""
    return thing.digest if isinstance(thing, Link) else ""


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
