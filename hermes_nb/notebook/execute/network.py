"""Control network use by code in this kernel, and record what it has loaded.

An audit hook is called for every Python socket connection and every program that is started. It
determines the responsible party (`Party`): a tool call that runs the agent's code (called "a call"
here), the agent itself, or the user. The party comes from the task (a context variable), else from
the thread, which inherits it from the code that started it, else from what the kernel is running: a
call, a turn, or one of the user's cells.

- Code in a call that runs `offline` is denied network access. So are any threads, tasks and
  functions that it leaves behind, even if other code calls them (a callback, a signal handler, a
  patched method). Two cases are not detected: a library function that waits in an earlier call's
  pool, and sockets opened in C.
- The hosts from which the kernel has loaded something, except this machine, are recorded in memory
  shared with forked children. From then on, the kernel's output is untrusted content.

This module only imports modules that a kernel has imported anyway, and the hook takes 0.1 µs per
event.
"""

from __future__ import annotations

import _thread
import atexit
import inspect
import ipaddress
import mmap
import os
import re
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from hermes_nb.core.messages import Origin
    from hermes_nb.notebook.shell import Shell

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_ASKS = "socket.getaddrinfo"
_SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", _ASKS})
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"})
_THREADS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_HEARD = _SENDS | _STARTS | _THREADS | {"exec"}
_TRACKER = re.compile(r"from multiprocessing\.resource_tracker import main;main\(\d+\)")
"""A helper process that every pool starts and that does not use the network."""
_OWN_THREADS = "hermes"
"""Name prefix of the agent's own threads, which send requests to models."""
REFUSED = "the network was not used: the conversation contains untrusted content"
LEFT = (
    "the network was not used: this code was defined while the conversation contained untrusted "
    "content; define it again in a cell of your own, or trust it with `%hermes trust kernel`"
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Party:
    """The party that is responsible for running code, with its permissions and network use."""

    offline: bool = False
    """True to deny network access."""
    approved: bool = False
    """True if the user has allowed network access, including through code left by offline calls."""
    networked: bool = False
    """True once it has used the network."""
    refused: bool = False
    """True once it has been denied network access."""


_HERMES, _USER = Party(), Party()
_watching: list[Party] = []
_current: ContextVar[Party | None] = ContextVar("hermes_nb_party", default=None)
_threads: WeakKeyDictionary[threading.Thread, Party] = WeakKeyDictionary()
_offline: WeakSet[Party] = WeakSet()
_left_code: dict[int, CodeType] = {}
"""Code objects of offline calls by id; running the same source again creates other objects."""
_trusted: set[str] = set()
_announced: set[str] = set()
_names: list[str] = []
"""The last host name that was looked up, for messages to the user."""


@dataclass(slots=True)
class _Now:
    """What this process is running: turns, one of the user's cells, or exit callbacks."""

    turns: int = 0
    cell: bool = False
    leaving: bool = False
    ending: bool = False


_now = _Now()


@cache
def _memory() -> mmap.mmap:
    """Return the memory shared with forked children: a count, then the hosts, one per line."""
    return mmap.mmap(-1, 4096)


def hosts() -> tuple[str, ...]:
    """Return the untrusted hosts from which this kernel has loaded data."""
    return tuple(_memory()[4:].rstrip(b"\0").decode("utf-8", "replace").split("\n")[:-1])


def news() -> str:
    """Return a Markdown message about hosts not reported yet; "" if there are none."""
    new = [host for host in hosts() if host not in _announced]
    _announced.update(new)
    if not new:
        return ""
    from hermes_nb.safety.markup import code_span  # imported only when needed

    return (
        f"This kernel has loaded data from {', '.join(map(code_span, new))}: its output counts as "
        'untrusted content. <code title="turn 0 of kernel">%hermes trust kernel</code> trusts '
        "what this kernel has loaded, until a restart."
    )


CONVERSATION = "a conversation with untrusted content"


def take_in() -> None:
    """Record that the agent's code may store its conversation's untrusted content in variables."""
    _note(CONVERSATION, _HERMES)


def kernel_origin() -> Origin:
    """Return the origin of this kernel's variables and outputs."""
    return "outside" if hosts() else "workspace"


def trust() -> tuple[str, ...]:
    """Trust all loaded data, and anything the user later loads from these hosts; return the hosts.

    Code that offline calls have left behind may use the network from now on.
    """
    found = hosts()
    _trusted.update(found)
    _announced.clear()
    _memory()[4:] = bytes(4092)
    for party in _offline:
        party.offline = False
    _left_code.clear()
    return found


def _note(host: str, party: Party) -> None:
    memory = _memory()
    count = (int.from_bytes(memory[:4], "big") + 1) % 2**32
    memory[:4] = count.to_bytes(4, "big")
    known = memory[4:].rstrip(b"\0")
    line = host[:200].replace("\n", " ").encode() + b"\n"
    if line in known.splitlines(keepends=True) or (party is _USER and host in _trusted):
        return
    if len(known) + len(line) < len(memory) - 4:
        memory[4 + len(known) : 4 + len(known) + len(line)] = line


def watch_cells(shell: Shell) -> None:
    """Also watch the user's own cells; registers once per shell."""
    _install()
    for event, function in (("pre_execute", _cell_begins), ("post_execute", _cell_ends)):
        if function not in shell.events.callbacks[event]:
            shell.events.register(event, function)


def _cell_begins() -> None:
    _now.cell = _now.cell or not _watching


def _cell_ends() -> None:
    _now.cell = _now.cell and bool(_watching)


def by_hermes(
    function: Callable[Arguments, Coroutine[None, None, Result]],
) -> Callable[Arguments, Coroutine[None, None, Result]]:
    """Decorate a coroutine function so that its network use is attributed to the agent itself.

    The agent is allowed to use the network.
    """

    @wraps(function)
    async def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        token = _current.set(_HERMES)
        _now.turns += 1
        try:
            return await function(*args, **kwargs)
        finally:
            _now.turns -= 1
            _current.reset(token)

    return run


@contextmanager
def watched(*, offline: bool = False, approved: bool = False) -> Iterator[Party]:
    """Attribute all code that this block runs or leaves behind to one call; yield its `Party`."""
    import_module("hermes_nb.safety.policy")  # used by the hook, so loaded before the code runs
    _install()
    party = Party(offline=offline, approved=approved)
    before, marker = _memory()[:4], partial(_leave, begins=False)
    if offline:
        _offline.add(party)
        atexit.register(marker)
    _watching.append(party)
    token = _current.set(party)
    try:
        yield party
    finally:
        _current.reset(token)
        _watching.remove(party)
        party.networked = party.networked or _memory()[:4] != before
        if offline:  # exit callbacks run in reverse order, so the markers enclose the call's own
            atexit.register(partial(_leave, begins=True))


def _leave(*, begins: bool) -> None:
    _now.leaving, _now.ending = begins, True


@cache
def _install() -> None:
    """Install the hook once per process, because an audit hook cannot be removed."""
    _memory()
    sys.addaudithook(_on_audit_event)
    if sys.platform != "win32":
        _hear_forks()
    if sys.version_info < (3, 12):  # these versions raise no event when a thread starts
        start: Callable[..., int] = _thread.start_new_thread

        def begin(function: object, *rest: object) -> int:
            _inherit(function, _responsible())
            return start(function, *rest)

        for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
            setattr(module, name, begin)


def _hear_forks() -> None:
    """Watch programs that `multiprocessing` starts, for which Python raises no event."""
    import _posixsubprocess

    start: Callable[..., int] = _posixsubprocess.fork_exec

    def begin(words: Sequence[str | bytes], paths: Sequence[bytes], *rest: object) -> int:
        if not _TRACKER.search(os.fsdecode(words[-1])):
            _on_audit_event("subprocess.Popen", (paths[0], words))
        return start(words, paths, *rest)

    setattr(_posixsubprocess, "fork_exec", begin)  # noqa: B010 - a module that mypy knows


def _on_audit_event(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _HEARD:
        return
    if event == "exec":
        if any(party.offline for party in _watching):
            _keep_code(arguments[0], next(islice(_frames(), 2, None)))
        return
    party = _responsible()
    if event in _THREADS:
        _inherit(arguments[0], party)
        return
    active = any(each.offline for each in _watching)
    if party is _HERMES or not (active or party or _now.leaving or _left_code):
        return
    refused = active or _now.leaving or _is_left_running(event, party)
    if not _uses(event, arguments, refused=refused):
        return
    if refused:
        for each in _watching:
            each.refused = True
        raise PermissionError(REFUSED if active else LEFT)
    if party is not None:
        party.networked = True
        _note(_host(event, arguments), party)


def _responsible() -> Party | None:
    """Return the party that is responsible for the current code; None if unknown."""
    if (party := _current.get()) is not None:
        return party
    thread = threading.current_thread()
    if (party := _threads.get(thread)) is not None:
        return party
    if thread.name.startswith(_OWN_THREADS):
        return _HERMES
    if _watching:
        return _watching[-1]
    if _now.turns and thread is not threading.main_thread():
        return _HERMES  # a thread of a pool; tasks of the main thread have a context variable
    return _USER if _now.cell or _in_a_cell() else None


def in_thread_of_call() -> bool:
    """Return whether a call started this thread, directly or indirectly."""
    return _threads.get(threading.current_thread()) not in (None, _HERMES, _USER)


def by_call() -> bool:
    """Return whether the calling code belongs to a call, or to what one has left behind.

    Functions passed to events are recognised only if an offline call has defined them.
    """
    called = in_thread_of_call() or _current.get() not in (None, _HERMES, _USER)
    return called or _in_left_code()


def _inherit(function: object, party: Party | None) -> None:
    """Assign a party to a new thread; refuse a thread from offline code that cannot be tracked."""
    thread = getattr(function, "__self__", None)
    if isinstance(thread, threading.Thread):
        if party is not None:
            agents = thread.name.startswith(_OWN_THREADS) and not party.offline
            _threads[thread] = heir = _HERMES if agents else party
            if heir not in (_HERMES, _USER):  # its callbacks in a loop inherit the context
                thread.run = partial(_run_as, heir, thread.run)  # type: ignore[method-assign]
    elif party is not None and party.offline:
        raise PermissionError(f"{REFUSED}; start threads with `threading.Thread`")


def _run_as(party: Party, run: Callable[[], None]) -> None:
    _current.set(party)
    run()


def _is_left_running(event: str, party: Party | None) -> bool:
    """Return whether code left behind by an offline call is running."""
    if party is not None and party.approved:
        return False
    if party is not None and party.offline:
        # The loop's default pool is shared: it also resolves the host names of models.
        shared = threading.current_thread().name.startswith("asyncio_")
        return not (shared and event == _ASKS)
    on_main = threading.current_thread() is threading.main_thread()
    if party is None and on_main and not _now.ending:
        return True  # a library function, passed to an event, a loop or a finalizer
    return _in_left_code()


def _in_left_code() -> bool:
    """Return whether a function that an offline call has defined is running."""
    return bool(_left_code) and any(id(each.f_code) in _left_code for each in _frames())


def _frames() -> Iterator[FrameType]:
    """Yield this frame and its callers."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _in_a_cell() -> bool:
    """Return whether a cell's code is running, for example a widget callback."""
    names = (frame.f_code.co_filename for frame in _frames())
    return any("ipykernel_" in name or name.startswith("<ipython-input") for name in names)


def _keep_code(code: object, caller: FrameType) -> None:
    """Store code objects run by an offline call, except library code."""
    if not isinstance(code, CodeType) or _responsible() is _HERMES:
        return
    name = code.co_filename
    library = name.startswith((sys.prefix, sys.base_prefix, "<frozen"))
    begun = caller.f_code.co_name == "run_code" or id(caller.f_code) in _left_code
    if not library and (begun or name.startswith("/")):
        found = [code]
        for each in found:
            _left_code[id(each)] = each
            found += [inner for inner in each.co_consts if isinstance(inner, CodeType)]


def _uses(event: str, arguments: tuple[object, ...], *, refused: bool) -> bool:
    """Return whether an event loads, or may load, data from another machine.

    Name lookups don't count, nor does connecting a datagram socket, which programs use to determine
    this machine's own address. With `refused`, all addresses and lookups count, as do all programs
    that are not known to be read-only.
    """
    address = arguments[-1]
    if event in _STARTS:
        return _reaches_out(arguments, offline=refused)
    if refused:  # a Unix socket too: a service behind it may use the network
        return True
    if event == _ASKS:
        _remember_name(arguments[0])
        return False
    if not isinstance(address, tuple) or _is_loopback(str(address[0])):
        return False  # a Unix socket has a path
    kind = getattr(arguments[0], "type", socket.SOCK_STREAM)
    return event != "socket.connect" or kind != socket.SOCK_DGRAM


def _remember_name(host: object) -> None:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")
    numeric = ":" in name or name.replace(".", "").isdigit()
    if not numeric and not _is_loopback(name):
        _names[:] = [name]


def _host(event: str, arguments: tuple[object, ...]) -> str:
    """Return the source to report: the last host that was looked up, an address, or a program."""
    if event in _STARTS:
        return " ".join(_command_line(arguments).split())[:60]
    address = arguments[-1]
    given = str(address[0]) if isinstance(address, tuple) else ""
    return _names.pop() if _names else given


def _is_loopback(host: str) -> bool:
    if host in ("localhost", ""):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    here = address.is_loopback or address.is_unspecified  # connecting to 0.0.0.0 stays local
    return here or (mapped is not None and mapped.is_loopback)


def _reaches_out(arguments: tuple[object, ...], *, offline: bool) -> bool:
    """Return whether a program is known to use the network; with `offline`, whether it might."""
    from hermes_nb.safety.permissions import Need
    from hermes_nb.safety.policy import CommandPlace, judge

    place = CommandPlace(workspace=Path("/"), directory=Path("/"), home=Path.home())
    judged = judge(_command_line(arguments), place)
    if not offline:
        return bool(judged.needs & {Need.NETWORK, Need.CREDENTIALS})
    programs = [stage.words[0] for line in judged.plan for stage in line.stages]
    path = _search_path(arguments)
    return judged.decision != "allow" or not all(_as_judged(each, path) for each in programs)


def _as_judged(program: str, path: str | None) -> bool:
    """Return whether the program to be started is the one that the policy checked.

    The policy checks the name, so the name must resolve to the same file. Python, git and sed
    return False, because the policy allows them only with options that we add.
    """
    name = Path(program).name
    there = shutil.which(name, path=path) or program
    same = os.path.realpath(there) == os.path.realpath(program)
    return same and program != sys.executable and name not in ("git", "sed")


def _search_path(arguments: tuple[object, ...]) -> str | None:
    """Return the PATH of a program's own environment, or None for this process's."""
    given = arguments[-1]
    return str(given.get("PATH", "")) or None if isinstance(given, Mapping) else None


def _command_line(arguments: tuple[object, ...]) -> str:
    """Return a program's command line from its audit event's arguments.

    The event's first argument is the program; the first word of its command line may differ.
    """
    program, words = arguments[:2] if len(arguments) > 1 else (None, arguments[0])
    if isinstance(words, list | tuple) and words:
        first = program if isinstance(program, str | bytes | os.PathLike) else words[0]
        parts = [os.fsdecode(first), *map(os.fsdecode, words[1:])]
        shell = shutil.which(parts[0], path=_search_path(arguments))
        if shell in _SHELLS and parts[1:-1] == ["-c"]:
            return parts[2]
        return shlex.join(parts)
    return os.fsdecode(words) if isinstance(words, str | bytes) else ""


_SHELLS = frozenset(
    f"{folder}/{name}" for folder in ("/bin", "/usr/bin") for name in ("sh", "bash")
)
