"""What this kernel's code does on the network: who does it, whether it may, what it has loaded.

An audit hook hears of every connection that Python's sockets make and of every program that is
started. Who is responsible follows from the task that does it (a context variable), else from its
thread, which inherits it from what started it, else from what runs in the kernel just now: a call
of the agent's, a turn, or a cell of the user's.

- Code of the agent's that runs `offline` is refused the network, and so is whatever it leaves
  behind: threads, tasks, and functions, whoever calls them (a callback, a signal, a patched
  method). Not seen are a library's own function that waits in a pool of an earlier call, and what
  opens sockets in C.
- Where the kernel's session has loaded something from, this machine aside, is kept in memory that
  forked children share. From then on what it shows is text from outside.

Nothing here is imported that a kernel has not imported anyway, and the hook costs 0.1 µs an event.
"""

from __future__ import annotations

import _thread
import atexit
import inspect
import ipaddress
import mmap
import re
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
"""A process that every pool has, and that only counts."""
_OWN_THREADS = "hermes"
"""How the names of the agent's threads begin, which talk to models."""
REFUSED = "the network was not used: the conversation holds text from outside"
LEFT = (
    "the network was not used: this code was made while the conversation held text from outside; "
    "make it again in a cell of yours, or trust it with `%hermes trust kernel`"
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Party:
    """Whoever is responsible for code, and what is noted while it runs.

    `offline` refuses the network; `approved` is a call that the user has allowed to use it, so that
    it may also call what offline code has left.
    """

    offline: bool = False
    approved: bool = False
    networked: bool = False
    refused: bool = False


_HERMES, _USER = Party(), Party()
_watching: list[Party] = []
_current: ContextVar[Party | None] = ContextVar("hermes_nb_party", default=None)
_threads: WeakKeyDictionary[threading.Thread, Party] = WeakKeyDictionary()
_offline: WeakSet[Party] = WeakSet()
_left_code: dict[int, CodeType] = {}
"""Code of offline calls, by its id; the same text that is run again is other code."""
_trusted: set[str] = set()
_announced: set[str] = set()
_names: list[str] = []
"""The name that was looked up last, for what the user is told."""


@dataclass(slots=True)
class _Now:
    """What this process is at: turns of the agent, a cell of the user's, callbacks at its end."""

    turns: int = 0
    cell: bool = False
    leaving: bool = False
    ending: bool = False


_now = _Now()


@cache
def _memory() -> mmap.mmap:
    """Return what this process and its forks share: a count, and the hosts, one a line."""
    return mmap.mmap(-1, 4096)


def hosts() -> tuple[str, ...]:
    """Return from where this kernel has loaded something that the user does not trust yet."""
    return tuple(_memory()[4:].rstrip(b"\0").decode("utf-8", "replace").split("\n")[:-1])


def news() -> str:
    """Return what the user is told of hosts that were not named yet, "" for nothing; Markdown."""
    new = [host for host in hosts() if host not in _announced]
    _announced.update(new)
    if not new:
        return ""
    from hermes_nb.safety.markup import code_span  # with the first host

    return (
        f"This kernel has loaded something from {', '.join(map(code_span, new))}: what it shows "
        'counts as text from outside. <code title="turn 0 of kernel">%hermes trust kernel</code> '
        "trusts what this kernel has loaded, until a restart."
    )


CONVERSATION = "a conversation with text from outside"


def take_in() -> None:
    """Note that code of the agent's may put text of its conversation into variables."""
    _note(CONVERSATION, _HERMES)


def kernel_origin() -> Origin:
    """Return whose text it is what this kernel's variables and outputs hold."""
    return "outside" if hosts() else "workspace"


def trust() -> tuple[str, ...]:
    """Trust what has been loaded, and the user's own later loads from there; return the hosts.

    What offline calls have left behind may use the network from now on.
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
    """Hear of the network from the user's own cells too, once for each shell."""
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
    """Make the agent itself responsible for what a coroutine function does on the network."""

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
    """Make a call of the agent's responsible for what code does meanwhile, and afterwards."""
    import_module("hermes_nb.safety.policy")  # what the hook asks, before anybody's code runs
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
        if offline:  # the last registered is called first: these two are around the call's own
            atexit.register(partial(_leave, begins=True))


def _leave(*, begins: bool) -> None:
    _now.leaving, _now.ending = begins, True


@cache
def _install() -> None:
    """Add the hook, once in a process: none can be taken away again."""
    _memory()
    sys.addaudithook(_heard)
    if sys.platform != "win32":
        _hear_forks()
    if sys.version_info < (3, 12):  # which raises no event when a thread begins
        start: Callable[..., int] = _thread.start_new_thread

        def begin(function: object, *rest: object) -> int:
            _inherit(function, _responsible())
            return start(function, *rest)

        for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
            setattr(module, name, begin)


def _hear_forks() -> None:
    """Hear of the programs that `multiprocessing` starts, of which Python raises no event."""
    import _posixsubprocess

    start: Callable[..., int] = _posixsubprocess.fork_exec

    def begin(words: Sequence[str | bytes], *rest: object) -> int:
        told = [
            word.decode(errors="replace") if isinstance(word, bytes) else word for word in words
        ]
        if not _TRACKER.search(told[-1]):
            _heard("subprocess.Popen", (None, told))
        return start(words, *rest)

    setattr(_posixsubprocess, "fork_exec", begin)  # noqa: B010 - a module that mypy knows


def _heard(event: str, arguments: tuple[object, ...]) -> None:
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
    refused = active or _now.leaving or _left(event, party)
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
    """Return who is responsible for what happens now; None where nobody is known."""
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
        return _HERMES  # of a pool; on the main thread its tasks say so themselves
    return _USER if _now.cell or _in_a_cell() else None


def in_thread_of_call() -> bool:
    """Say whether a call of the agent's has started this thread, or one that did."""
    party = _threads.get(threading.current_thread())
    return party is not None and party not in (_HERMES, _USER)


def _inherit(function: object, party: Party | None) -> None:
    """Let a thread that begins inherit who is responsible; refuse one that cannot be told later."""
    thread = getattr(function, "__self__", None)
    if isinstance(thread, threading.Thread):
        if party is not None:
            agents = thread.name.startswith(_OWN_THREADS) and not party.offline
            _threads[thread] = _HERMES if agents else party
    elif party is not None and party.offline:
        raise PermissionError(f"{REFUSED}; start threads by `threading.Thread`")


def _left(event: str, party: Party | None) -> bool:
    """Say whether offline code is at work that has outlived its call."""
    if party is not None and party.approved:
        return False
    if party is not None and party.offline:
        # Of the loop's own pool, which everybody shares: it looks names up for the model too.
        shared = threading.current_thread().name.startswith("asyncio_")
        return not (shared and event == _ASKS)
    on_main = threading.current_thread() is threading.main_thread()
    if party is None and on_main and not _now.ending:
        return True  # a library's function that it handed to an event, a loop or a finalizer
    return bool(_left_code) and any(id(each.f_code) in _left_code for each in _frames())


def _frames() -> Iterator[FrameType]:
    """Yield this frame, and those that led here."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _in_a_cell() -> bool:
    """Say whether code of a cell is at work, as a widget's callback is."""
    names = (frame.f_code.co_filename for frame in _frames())
    return any("ipykernel_" in name or name.startswith("<ipython-input") for name in names)


def _keep_code(code: object, caller: FrameType) -> None:
    """Keep code that an offline call runs, but for libraries' and what those make up."""
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
    """Say whether an event loads something, or may, from another machine.

    Looking up a name does not, nor does a datagram socket that is connected, by which programs find
    out this machine's own address. But any address and name is `refused`, and programs that are not
    known to only read.
    """
    address = arguments[-1]
    if event in _STARTS:
        return _reaches_out(_command_line(arguments), offline=refused)
    if refused:
        return event == _ASKS or isinstance(address, tuple)
    if event == _ASKS:
        _remember_name(arguments[0])
        return False
    if not isinstance(address, tuple) or _is_loopback(str(address[0])):
        return False  # a socket of this machine has a path
    kind = getattr(arguments[0], "type", socket.SOCK_STREAM)
    return event != "socket.connect" or kind != socket.SOCK_DGRAM


def _remember_name(host: object) -> None:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")
    numeric = ":" in name or name.replace(".", "").isdigit()
    if not numeric and not _is_loopback(name):
        _names[:] = [name]


def _host(event: str, arguments: tuple[object, ...]) -> str:
    """Return what the user is told: the name that was looked up last, an address, a program."""
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
    here = address.is_loopback or address.is_unspecified  # to connect there is to come here
    return here or (mapped is not None and mapped.is_loopback)


def _reaches_out(command: str, *, offline: bool) -> bool:
    """Say whether a program is known to use the network; `offline`: not known to only read."""
    from hermes_nb.safety.permissions import Need
    from hermes_nb.safety.policy import CommandPlace, judge

    place = CommandPlace(workspace=Path("/"), directory=Path("/"), home=Path.home())
    judged = judge(command, place)
    if offline:
        return judged.decision != "allow"
    return bool(judged.needs & {Need.NETWORK, Need.CREDENTIALS})


def _command_line(arguments: tuple[object, ...]) -> str:
    """Return the command line of a program that is started, by the arguments of its event."""
    words = arguments[1] if len(arguments) > 1 else arguments[0]
    if isinstance(words, bytes):
        return words.decode("utf-8", "replace")
    if isinstance(words, list | tuple):
        shell = "-c" in words[1:-1][:2]  # sh -c COMMAND
        return str(words[-1]) if shell else " ".join(map(str, words))
    return words if isinstance(words, str) else ""
