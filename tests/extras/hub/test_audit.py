"""The audit: each call that is executed, whoever asks for it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import hermes_nb
import pytest
from hermes_nb import Hermes
from hermes_nb.agent.session.flush import flush
from hermes_nb.cli.main import main
from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Place
from hermes_nb.extras.hub import audit as audit_module
from hermes_nb.extras.hub.audit import Audit, AuditSettings, ProcessUser
from hermes_nb.extras.hub.gaps import gaps
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.safety import administrator
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.worlds import World
from tests.cli.conftest import serve  # noqa: F401
from tests.contract.safety.people import Person
from tests.contract.users import ALICE
from tests.loopback import calls, says
from tests.notebook.conftest import shell  # noqa: F401
from tests.notebook.desks import Desk
from tests.patience import until
from tests.safety.test_policy_of_root import as_root

KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2


class Recorded:
    """What the tool `mark` did, by itself, and what the audit says of it."""

    def __init__(self, folder, require):
        self.ran, self.file = folder / "ran.txt", folder / "audit.jsonl"
        self.require = require

    def mark(self, name: str) -> str:
        """Leave a mark."""
        with self.ran.open("a") as file:
            file.write(f"{name}\n")
        if name == "broken":
            raise ToolError("it broke")
        return name

    @property
    def lines(self):
        return [json.loads(line) for line in self.file.read_bytes().splitlines()]

    def ended(self, tool="mark"):
        return [line for line in self.lines if line["event"] == "end" and line["tool"] == tool]

    def complete(self, *sources):
        """Say whether it has what ran, each with a beginning and an end, from these sources."""
        ran = sorted(self.ran.read_text().split()) if self.ran.exists() else []
        found = [json.loads(line["arguments"])["name"] for line in self.ended()]
        both = [line["call"] for line in self.lines if line["event"] == "call"]
        assert sorted(found) == ran
        assert sorted(both) == sorted(e["call"] for e in self.lines if e["event"] == "end")
        assert {line["source"] for line in self.lines} == set(sources)
        assert not list(gaps(self.file.read_bytes().splitlines()))
        return True


@pytest.fixture
def recorded(tmp_path, administered):
    """Put a policy in force that has calls recorded."""

    def require(**settings):
        administered(audit=settings)

    found = Recorded(tmp_path, require)
    require(file=str(found.file))
    return found


def test_a_call_is_recorded_with_all_that_is_known_of_it(recorded, tmp_path):
    steps = [
        call("mark", name="one"),
        call("mark", name="broken"),
        [call("mark", name="two"), call("mark", name="three"), call("nothing", name="four")],
        call("terminal", command=f"echo token {KEY} > out.txt"),
        call("write_file", path="a.txt", content="b"),
        "Done.",
    ]
    person = Person("once", "deny")
    with Hermes(
        ScriptedModel(steps),
        cwd=tmp_path,
        tools=[recorded.mark, "terminal", "files"],
        approve=person,
    ) as hermes:
        turn = hermes.ask("go")
        assert turn.text == "Done."
        session = hermes.session_id
    assert recorded.complete("script")
    by_name = {(e["tool"], e["outcome"]): e for e in recorded.lines if e["event"] == "end"}
    assert by_name["mark", "error"]["error"] == "it broke"
    command, denied = by_name["terminal", "ok"], by_name["write_file", "denied"]
    assert command["answers"] == ["once"] and denied["answers"] == ["deny"]
    assert not (tmp_path / "a.txt").exists()
    one = recorded.ended()[0]
    assert (one["session"], one["turn"], one["mode"], one["risk"]) == (session, 1, "ask", "read")
    assert one["user"] and one["host"] and one["pid"] == os.getpid()
    assert KEY not in recorded.file.read_text()
    whole = json.dumps({"command": f"echo token {KEY} > out.txt"}, separators=(",", ":"))
    assert command["digest"] == hashlib.sha256(whole.encode()).hexdigest()


def test_children_and_maps(recorded, tmp_path):
    child = ["mark", "delegation"]
    steps = [
        call("delegate_task", goal="leave a mark"),
        call("mark", name="child"),
        "The child is done.",
        "All done.",
        call("mark", name="task"),
        "A row.",
    ]
    with Hermes(ScriptedModel(steps), cwd=tmp_path, tools=[recorded.mark, *child[1:]]) as hermes:
        assert hermes.ask("go").text == "All done."
        rows = hermes.map("Mark it", {"a": "1"}, tools=["mark"]).rows
        assert rows[0]["answer"] == "A row."
    assert recorded.complete("script", "child", "map")
    assert [line["outcome"] for line in recorded.ended("delegate_task")] == ["ok"]


def test_what_looks_back_and_what_saves_memory_before_it_goes(recorded, home):
    recorded.file.parent.mkdir(exist_ok=True)
    world = World(home, "Fine.")
    try:
        world.say("hello")
        world.review(call("memory", action="add", target="user", content="Likes tables."))
        model = ScriptedModel([call("memory", action="add", target="user", content="Likes cats.")])
        span = [Message.user("I like cats")]
        tools = world.runtime.quiet_tools(model, world.session.place, span)
        place = Place(session="s", turn=7)
        asyncio.run(flush(span, model=model, memory=lambda _: tools, place=place))
        entries = world.memory.entries("user")
    finally:
        world.close()
    assert [line["outcome"] for line in recorded.ended("memory")] == ["ok", "ok"]
    assert len(entries) == 2 and recorded.complete("review")
    assert recorded.ended("memory")[1]["turn"] == 7


def test_a_cell(recorded, shell, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_NB_APPROVE", "all")
    (tmp_path / "seen.txt").write_text("seen")
    desk = Desk(shell)
    try:
        desk.plays(call("run_python", code="x = 6 * 7"), "Done.")
        desk.ask("go on with @file:seen.txt")
    finally:
        desk.agent.close()
    assert shell.user_ns["x"] == 42
    (seen,) = recorded.ended("read_file")  # what a prompt names is read by the same tools
    assert (seen["source"], seen["outcome"], seen["mode"]) == ("notebook", "ok", "all")
    ended = recorded.ended("run_python")
    assert [line["mode"] for line in ended] == ["all"]
    assert recorded.complete("terminal", "notebook")


def test_the_command_line(recorded, serve, tmp_path, capsys):  # noqa: F811
    serve(calls(("list_files", {})), says("Done."))
    assert main(["run", "go"]) == 0
    assert [line["outcome"] for line in recorded.ended("list_files")] == ["ok"]
    assert recorded.complete("terminal")


def test_a_chat(recorded, home, tmp_path):
    play = pytest.importorskip("tests.extras.gateway.test_gateway").play

    async def story(chat):
        chat.post("What is there?")
        await chat.said(1)

    chat, _ = play(tmp_path, home, story, call("list_files"), "A file.")
    assert [answer.text for answer in chat.sent] == ["A file."]
    assert [line["outcome"] for line in recorded.ended("list_files")] == ["ok"]
    assert recorded.complete("chat")


def test_their_calls_are_in_the_audit(with_server, tmp_path, administered):
    file = tmp_path / "audit.jsonl"
    administered(audit={"file": str(file)})
    model = ScriptedModel([call("mcp__t__add", a=1, b=2), "Done."])
    with Hermes(model, home=with_server, approve=Person("once")) as hermes:
        hermes.ask("go")
    begun, ended = map(json.loads, file.read_bytes().splitlines())
    assert (begun["event"], begun["tool"]) == ("call", "mcp__t__add")
    assert ended["outcome"] == "ok" and ended["answers"] == ["once"]


CALLED = """
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call
with Hermes(ScriptedModel([call("list_files"), "done"])) as hermes:
    hermes.ask("go")
"""


@as_root
def test_an_account_without_a_name_has_an_audit_by_its_number(prefix):
    logs = prefix.folder / "logs"
    logs.mkdir()
    prefix.settle(audit={"file": f"{logs}/{{user}}.jsonl", "required": True})
    file = logs / f"{ALICE}.jsonl"
    file.touch(mode=0o600)
    os.chown(file, ALICE, ALICE)
    found = prefix.run(ALICE, "-c", CALLED, USER="root", LOGNAME="root", JUPYTERHUB_USER="ada")
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(e["event"], e["user"], e["login"]) for e in lines] == [
        ("call", str(ALICE), "ada"), ("end", str(ALICE), "ada")
    ]  # fmt: skip
    assert lines[-1]["outcome"] == "ok"


def test_who_else_makes_agents_or_runs_calls():
    """Each of these places gives its agents tools that are recorded; a new one has to as well."""
    runs = re.compile(r"(?<![\w.])(?:Agent|run_segment|execute)\((?!self)|\.run\(ToolContext")
    found = {
        f"{path.parent.name}/{path.name}"
        for path in Path(hermes_nb.__file__).parent.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if runs.search(line) and not re.search(r"(?:class|def) \w+\(", line)
    }
    within = {"core/loop.py", "core/calls.py"}
    assert found - within == {
        "session/session.py",  # Session.use
        "fanout/executors.py",  # Runtime.for_tasks
        "learning/review.py",  # Runtime.quiet_tools
        "session/flush.py",  # the same
        "notebook/references.py",  # References
        "mcp_server/door.py",  # Runtime.offered
        "execute/copy_worker.py",  # run_python's code in a copy, not a call
    }


def test_a_killed_process_leaves_what_it_was_at(recorded, tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.safety import administrator
administrator.PLACES = (Path({str(administrator.PLACES[0])!r}),)
administrator.not_roots = lambda path: ""
def die() -> str:
    "End at once."
    os.kill(os.getpid(), signal.SIGKILL)
Hermes(ScriptedModel([call("die")]), tools=[die]).ask("go")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [(line["event"], line["tool"]) for line in recorded.lines] == [("call", "die")]


FILLING = """
import resource, sys
from hermes_nb.extras.hub.audit import Audit, AuditSettings, ProcessUser
audit = Audit(AuditSettings(file=sys.argv[1]), ProcessUser(user="ada"))
audit.record({"event": "call"})
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (len(open(sys.argv[1]).read()) + 40, hard))
audit.record({"event": "call", "lost": "half of it"})
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
for number in range(2):
    audit.record({"event": "call", "number": number})
"""


def test_a_disk_that_was_full_costs_the_line_alone_that_found_no_room(tmp_path):
    file = tmp_path / "audit.jsonl"
    subprocess.run([sys.executable, "-c", FILLING, file], check=True)
    first, half, *rest = file.read_bytes().splitlines()
    assert len(half) == 40
    assert [json.loads(line)["number"] for line in rest] == [0, 1]
    assert json.loads(rest[0])["lost"] == 1
    told = list(gaps([first, half, *rest]))
    assert told == ["line 2: it cannot be parsed", "line 3: number 3 does not follow number 1"]


FORKING = """
import os, sys
from pathlib import Path
from hermes_nb.extras.hub.audit import audit_now
from hermes_nb.safety import administrator
administrator.PLACES = (Path(sys.argv[1]),)
administrator.not_roots = lambda path: ""
audit_now().record({"event": "call", "number": -1})
children = []
for child in range(3):
    if not (pid := os.fork()):
        for number in range(200):
            audit_now().record({"event": "call", "number": number})
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
audit_now().record({"event": "call", "number": -1})
"""


def test_forks_write_one_chain(recorded):
    subprocess.run([sys.executable, "-c", FORKING, administrator.PLACES[0]], check=True)
    assert len(recorded.lines) == 602
    assert not list(gaps(recorded.file.read_bytes().splitlines()))


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="who waits is read there")
def test_who_waited_while_it_was_rotated_goes_on_in_the_new_file(tmp_path):
    file, old = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    audit = Audit(AuditSettings(file=str(file)), ProcessUser(user="ada"))
    audit.record({"event": "call"})
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=audit.record, args=({"event": "end"},))
        waiting.start()
        assert until(lambda: _is_waited_for(held))
        file.rename(old)
        fcntl.flock(held, fcntl.LOCK_UN)
    waiting.join()
    lines = [*old.read_bytes().splitlines(), *file.read_bytes().splitlines()]
    assert [json.loads(line)["event"] for line in lines] == ["call", "end"]
    assert len(old.read_bytes().splitlines()) == 1 and not list(gaps(lines))


def _is_waited_for(file):
    inode = os.fstat(file.fileno()).st_ino
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in locks)


def test_until_there_is_a_new_file_lines_go_on_in_the_old_one(tmp_path):
    file, old = tmp_path / "a" / "audit.jsonl", tmp_path / "b"
    file.parent.mkdir()
    audit = Audit(AuditSettings(file=str(file)), ProcessUser(user="ada"))
    audit.record({"event": "call"}, must=True)
    file.parent.rename(old)  # as one renames it in a folder in which the user makes none
    audit.record({"event": "end"}, must=True)
    file.parent.mkdir()
    audit.record({"event": "call"}, must=True)
    lines = [*(old / file.name).read_bytes().splitlines(), *file.read_bytes().splitlines()]
    assert len(file.read_bytes().splitlines()) == 1 and not list(gaps(lines)) and not audit.lost
    file.unlink()
    file.mkdir()
    with pytest.raises(audit_module.AuditError):
        audit.record({"event": "end"}, must=True)


def test_a_secret_that_is_cut_is_none_either(recorded):
    def broken() -> str:
        """Break."""
        raise ToolError("x" * 170 + f" {token}")

    token = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" + "0123456789"

    with Hermes(ScriptedModel([call("broken"), "Done."]), tools=[broken]) as hermes:
        hermes.ask("go")
    (ended,) = recorded.ended("broken")
    assert ended["error"].startswith("xxx") and token[:12] not in ended["error"]


def test_a_stop_is_told_from_an_error_and_what_is_stopped_early_has_an_end(
    recorded, collector, monkeypatch
):
    def stopped() -> str:
        """Be stopped."""
        raise TurnInterrupted("by hand")

    with Hermes(ScriptedModel([call("stopped")]), tools=[stopped]) as hermes:
        assert hermes.ask("go").reason == "interrupted"
    assert [line["outcome"] for line in recorded.ended("stopped")] == ["interrupted"]
    address, server = collector("http")
    server.status = 503
    recorded.require(file=str(recorded.file), collector=address, required=True)

    async def turn(hermes):
        async def take():
            async with aclosing(hermes.stream("go")) as events:
                async for _ in events:
                    pass

        taking = asyncio.create_task(take())
        while len(recorded.lines) < 3:
            await asyncio.sleep(0.01)
        taking.cancel()
        await asyncio.wait([taking])
        await hermes.__aexit__()

    asyncio.run(turn(Hermes(ScriptedModel([call("mark", name="one")]), tools=[recorded.mark])))
    assert [line["outcome"] for line in recorded.ended()] == ["interrupted"]
    assert not recorded.ran.exists()


def test_the_mode_is_the_one_that_holds(recorded, administered):
    model = ScriptedModel([call("mark", name="one"), "Done."])
    with Hermes(model, tools=[recorded.mark], approve="all") as hermes:
        administered(modes={"all": "force-off"}, audit={"file": str(recorded.file)})
        hermes.ask("go")
    assert [line["mode"] for line in recorded.ended()] == ["edits"]


def test_what_cannot_be_recorded_is_not_executed(recorded, tmp_path):
    recorded.require(file=str(tmp_path / "no" / "audit.jsonl"), required=True)
    steps = [call("mark", name="one"), "It was not to be."]
    with Hermes(model := ScriptedModel(steps), tools=[recorded.mark]) as hermes:
        hermes.ask("go")
    assert not recorded.ran.exists()
    assert "was not run: the audit" in model.requests[1].messages[-1].text


def test_without_that_it_is_executed_and_the_loss_is_said(recorded, tmp_path):
    recorded.require(file=str(tmp_path / "no" / "audit.jsonl"))
    with Hermes(
        ScriptedModel([call("mark", name="one"), "Done."]), tools=[recorded.mark]
    ) as hermes:
        hermes.ask("go")
        assert any("lost 1 line;" in line for line in hermes.warnings)
    assert recorded.ran.read_text() == "one\n"


@pytest.mark.parametrize("wrong", [{"fil": "/a"}, {"file": "a"}, {}, {"file": "/a", "required": 1}])
def test_a_policy_that_cannot_be_meant_stops_calls(recorded, wrong):
    recorded.require(**wrong, **({} if wrong else {"required": True}))
    with Hermes(ScriptedModel([call("mark", name="one"), "No."]), tools=[recorded.mark]) as hermes:
        hermes.ask("go")
    assert not recorded.ran.exists()


def test_the_example_of_the_guide_is_one():
    page = (Path(__file__).parents[3] / "docs/howto/jupyterhub.md").read_text("utf-8")
    (shown,) = re.findall(r'^\{"HermesPolicy": .*$', page, re.MULTILINE)
    settings = AuditSettings.of(json.loads(shown)["HermesPolicy"]["audit"])
    assert settings.required and settings.collector.startswith("http://")


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.server.lines.append(json.loads(line))


class Posted(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body, status = self.rfile.read(int(self.headers["Content-Length"])), self.server.status
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if status == 200:
            self.server.lines += map(json.loads, body.splitlines())


class Datagrams(socketserver.BaseRequestHandler):
    def handle(self):
        head, _, line = self.request[0].partition(b" audit - ")
        assert head.startswith(b"<110>1 ")
        self.server.lines.append(json.loads(line))


@pytest.fixture
def collector(open_path):
    """Return a function that starts a collector of a kind and gives its address and itself."""
    started = []

    def start(kind, port=0):
        if kind == "unix":
            server = socketserver.ThreadingUnixStreamServer(str(open_path / "a.sock"), Lines)
            address = f"unix://{open_path}/a.sock"
        elif kind == "http":
            server = ThreadingHTTPServer(("127.0.0.1", port), Posted)
            address = f"http://127.0.0.1:{server.server_address[1]}/audit"
        else:
            server = socketserver.UDPServer(("127.0.0.1", 0), Datagrams)
            address = f"syslog://127.0.0.1:{server.server_address[1]}"
        server.daemon_threads, server.lines, server.status = True, [], 200
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)
        return address, server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("kind", ["unix", "http", "syslog"])
def test_a_collector_hears_as_it_happens(recorded, collector, kind):
    address, server = collector(kind)
    recorded.require(file=str(recorded.file), collector=address)
    heard = []

    def look() -> str:
        """Look what the collector has by now."""
        assert until(lambda: len(server.lines) == 1)
        heard.extend(server.lines)
        return "seen"

    with Hermes(ScriptedModel([call("look"), "Done."]), tools=[look]) as hermes:
        hermes.ask("go")
    assert [line["event"] for line in heard] == ["call"]
    assert until(lambda: len(server.lines) == 2)
    assert server.lines == recorded.lines


def test_a_collector_that_is_away_gets_it_later_and_is_waited_for_where_it_must(
    recorded, collector, monkeypatch
):
    monkeypatch.setattr(audit_module, "DELIVERY", 0.3)
    address, server = collector("http")
    server.status = 503
    recorded.require(collector=address, required=True)
    steps = [call("mark", name="one"), "No.", call("mark", name="two"), "Yes."]
    with Hermes(ScriptedModel(steps), tools=[recorded.mark]) as hermes:
        hermes.ask("go")
        assert not recorded.ran.exists()
        server.status = 200
        assert until(lambda: server.lines)
        hermes.ask("again")
    assert recorded.ran.read_text() == "two\n"
    assert until(lambda: len(server.lines) == 4)
    assert [line["seq"] for line in server.lines] == [1, 2, 3, 4]
    assert [line.get("outcome") for line in server.lines] == [None, "denied", None, "ok"]


def test_a_queue_that_is_full_is_counted(monkeypatch, collector):
    monkeypatch.setattr(audit_module, "WAITING", 5)
    address, server = collector("http")
    server.status = 503
    audit = Audit(AuditSettings(collector=address), ProcessUser(user="ada"))
    for _ in range(9):
        audit.record({"event": "call"})
    assert "lost 4 lines;" in audit.news() and not audit.news()
    server.status = 200
    assert until(lambda: len(server.lines) == 5, 20)


WRITER = """
import sys
from hermes_nb.extras.hub.audit import Audit, AuditSettings, ProcessUser
audit = Audit(AuditSettings(file=sys.argv[1]), ProcessUser(user="ada"))
for number in range(int(sys.argv[2])):
    audit.record({"event": "call", "number": number})
"""


def test_processes_write_one_chain_also_over_a_rotation(tmp_path, capsys):
    file, old = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    command = [sys.executable, "-c", WRITER, str(file), "400"]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    audit = Audit(AuditSettings(file=str(file)), ProcessUser(user="ada"))
    audit.record({"event": "call"})
    file.rename(old)
    audit.record({"event": "call"})
    assert len(old.read_bytes().splitlines()) == 1201
    assert main(["audit", str(old), str(file)]) == 0
    assert "no gaps found" in capsys.readouterr().out
    assert main(["audit", str(file)]) == 1
    assert "line 1: its number is 1202" in capsys.readouterr().out


@given(st.integers(0, 19), st.sampled_from(["drop", "change", "swap", "cut"]))
def test_what_is_taken_out_or_changed_leaves_a_gap(tmp_path_factory, at, how):
    file = tmp_path_factory.mktemp("chain") / "audit.jsonl"
    audit = Audit(AuditSettings(file=str(file)), ProcessUser(user="ada"))
    for number in range(21):
        audit.record({"event": "call", "number": number})
    lines = file.read_bytes().splitlines()
    assert not list(gaps(lines))
    if how == "drop":
        del lines[at]
    elif how == "change":
        lines[at] = lines[at].replace(b'"ada"', b'"eve"')
    elif how == "swap":
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    else:
        lines[at] = lines[at][:-5]
    assert list(gaps(lines))


def test_a_line_that_was_cut_short_takes_no_other_with_it(tmp_path):
    file = tmp_path / "audit.jsonl"
    Audit(AuditSettings(file=str(file)), ProcessUser(user="ada")).record({"event": "call"})
    with file.open("ab") as torn:
        torn.write(b'{"chain": "x", "se')
    audit = Audit(AuditSettings(file=str(file)), ProcessUser(user="ada"))
    audit.record({"event": "call"})
    first, torn, last = file.read_bytes().splitlines()
    assert json.loads(last)["seq"] == 2 and json.loads(first)["seq"] == 1
    assert list(gaps([first, torn, last])) == ["line 2: it cannot be parsed"]


def test_no_link_is_followed(tmp_path):
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    audit = Audit(AuditSettings(file=str(tmp_path / "audit.jsonl")), ProcessUser(user="ada"))
    audit.record({"event": "call"})
    assert audit.lost == 1 and not (tmp_path / "elsewhere").exists()
