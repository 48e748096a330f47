"""Children and other jobs as the user meets them: in the cell, as commands, in the panel."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import (
    ChildFinished,
    ChildProgress,
    ChildStarted,
    MessageAdded,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.commands.table import Completions, find, perform
from hermes_nb.notebook.display.plain_terminal import TerminalView
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import bundle
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.panels.panel import Panel
from hermes_nb.notebook.panels.sessions import read_sessions
from hermes_nb.safety.markup import safe_markdown
from hermes_nb.testing import run_notebook
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.cells import served_kernel
from tests.loopback import Loopback, calls, says
from tests.notebook.test_cassette_runs import write
from tests.patience import STOPS_WITHIN

pytestmark = pytest.mark.slow

CALL = ToolCall(id="1", name="delegate_task", arguments={"tasks": ["count", "sum"]})
HOSTILE = "<img src=x onerror=alert(1)> `|` [a](javascript:x) \u202etxt sk-proj-" + "a1B2" * 8


BEGUN = (TurnStarted(1), MessageAdded(Message.user("go")), ToolStarted(CALL))


def told(*events):
    transcript = Transcript(model="m")
    for event in (*BEGUN, *events):
        transcript(event)
    return transcript


def used(requests):
    return Usage(input=100, output=10, requests=requests)


def test_a_running_child_is_one_line_below_its_call():
    transcript = told(
        ChildStarted("1", 1, "count"),
        ChildStarted("1", 2, "sum"),
        ChildProgress("1", 1, "read_file a.csv", used(2)),
        ChildFinished("1", 2, "failed", 3.0, used(1)),
        *(ChildProgress("1", 7, "x"), ChildFinished("9", 1, "done", 1.0)),  # of nobody known
    )
    lines = transcript.running().split("\n")
    at = next(i for i, line in enumerate(lines) if "delegate" in line)
    assert "↳ ◌ count · `read_file a.csv` · 2 requests · " in lines[at + 1]
    assert "↳ ✗ sum · failed · 1 request · 3.0 s" in lines[at + 2]
    assert transcript.running().count("↳") == 2
    assert transcript.usage.requests == 1  # that of the child which is over


def test_many_children_leave_the_cell_readable():
    events = [ChildStarted("1", n, f"task {n}") for n in range(1, 21)]
    events += [ChildFinished("1", n, "done", 1.0, used(1)) for n in range(1, 18)]
    running = told(*events).running()
    assert "↳ … 14 that have finished" in running
    assert running.count("↳") == 7


def test_afterwards_children_are_folded_away_with_the_result():
    transcript = told(
        ChildStarted("1", 1, "count"),
        ChildFinished("1", 1, "done", 2.0, used(3)),
        ToolFinished(CALL, "ok", 2.0),
        MessageAdded(Message.tool(CALL, '{"results": []}')),
        MessageAdded(Message.assistant("Counted.")),
        TurnEnded("answered"),
    )
    shown = bundle(transcript, running=False)
    assert shown["text/markdown"].startswith("Counted.")
    body = shown["text/markdown"].split("<details>", 1)[1]
    assert "↳ ✓ count · 3 requests · 2.0 s" in body
    assert "↳ ✓ count" in shown["text/plain"]
    assert "3 requests" in shown["text/markdown"].rsplit("<sub>", 1)[1]


@given(st.text(max_size=300), st.text(max_size=300))
def test_what_children_say_cannot_break_the_view(goal, doing):
    transcript = told(
        ChildStarted("1", 1, goal + HOSTILE), ChildProgress("1", 1, doing + HOSTILE, used(1))
    )
    running = transcript.running()
    assert "a1B2" not in running
    assert "<img" not in safe_markdown(running)
    assert "\u202e" not in running
    assert sum("↳" in line for line in running.split("\n")) == 1 + (goal + doing).count("↳")


def test_a_terminal_prints_a_line_a_child(capsys):
    view = TerminalView(Transcript(model="m"))
    child = ChildStarted("1", 1, "count"), ChildFinished("1", 1, "done", 2.0, used(3))
    for event in (*BEGUN, *child, ToolFinished(CALL, "ok", 2.0)):
        view(event)
    assert "↳ ✓ count · 3 requests · 2.0 s" in capsys.readouterr().out


def is_child(request):
    return request.messages[0].text.startswith("You are a child agent")


def play(request):
    """Return what a parent, its quick child and its slow child do."""
    begins = request.messages[-1].role == "user"
    if not is_child(request):
        return call("delegate_task", tasks=["slow", "quick"]) if begins else "done"
    if "slow" in request.messages[1].text and begins:
        return call("terminal", command="sleep 20")
    return "report"


@pytest.fixture
def agent(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = KernelAgent(shell, say=lambda _: None, overrides=lambda: {"approve": "all"})
    agent.use(ScriptedModel([play] * 50))
    yield agent
    agent.hub.close()
    agent.close()


async def until(condition, seconds=10.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def command(agent, line):
    found, words = find(line)
    return await perform(found, agent, words)


def sleeping(agent):
    return next((job for job in agent.jobs if "sleep" in job.doing), None)


def test_jobs_are_listed_completed_and_stopped_while_a_turn_runs(agent, shell):
    async def story():
        assert "No child agents" in await command(agent, "jobs")
        turn = asyncio.create_task(agent.ask("go"))
        await until(lambda: sleeping(agent) and len(agent.jobs) == 1)
        job = sleeping(agent)
        listed = await command(agent, "jobs")
        assert "slow" in listed and "terminal sleep 20" in listed
        bell = type("Bell", (), {"awake": agent})()
        assert list(Completions(bell)._names("jobs")) == [job.id]
        with pytest.raises(ConfigError, match="no job '99' is running"):
            await command(agent, "jobs stop 99")
        with pytest.raises(ConfigError, match="takes stop"):
            await command(agent, "jobs halt")
        assert "Stopping" in await command(agent, f"jobs stop {job.id}")
        await turn
        assert len(agent.jobs) == 0
        assert "No child agents" in await command(agent, "jobs stop")

    asyncio.run(story())
    assert agent.last.answer == "done"
    result = next(m for m in agent.session.messages if m.role == "tool").text
    assert '"status": "stopped"' in result and '"status": "done"' in result


def test_what_a_child_wrote_is_undone_with_the_turn(agent, tmp_path):
    def write(request):
        if request.messages[-1].role != "user":
            return "written"
        if is_child(request):
            return call("write_file", path="made.txt", content="by a child")
        return call("delegate_task", goal="write made.txt")

    agent.use(ScriptedModel([write] * 9))

    async def story():
        await agent.ask("go")
        assert (tmp_path / "made.txt").read_text() == "by a child"
        await command(agent, "undo")

    asyncio.run(story())
    assert not (tmp_path / "made.txt").exists()


def test_the_panel_finds_what_a_child_said_and_does_not_resume_it(agent, home):
    def answer(request):
        if is_child(request):
            return "eleven ibises"
        first = request.messages[-1].role == "user"
        return call("delegate_task", goal="count the birds") if first else "done"

    agent.use(ScriptedModel([answer] * 9))

    async def story():
        await agent.ask("go")
        panel = Panel(agent)
        panel.select("session")
        tab = panel.tab
        found = await asyncio.to_thread(lambda: read_sessions(tab.place, "ibises"))
        lines = [tab._line(each) for each in found.found if each.stored.source == "child"]
        assert lines and all(not line.acts and "a child agent" in line.foot for line in lines)
        listed = await asyncio.to_thread(lambda: read_sessions(tab.place, ""))
        assert len(listed.found) == 1
        panel.close()

    asyncio.run(story())


def test_a_childs_events_are_json_lines():
    from hermes_nb.cli.run import line_of

    line = line_of(ChildFinished("1", 2, "failed", 3.0, used(1)))
    assert line.pop("usage")["requests"] == 1
    assert list(line.values()) == ["ChildFinished", "1", 2, "failed", 3.0]
    assert line_of(ChildStarted("1", 1, HOSTILE))["goal"].endswith("[redacted]")


@pytest.mark.kernel
def test_the_stop_button_ends_children_and_their_processes(tmp_path):
    seconds = f"6{os.getpid()}"  # nobody else sleeps that long
    begin = calls(("delegate_task", {"tasks": ["one", "two"]}))
    sleep = calls(("terminal", {"command": f"sleep {seconds}"}))
    replies = (begin, sleep, sleep, says("On we go."))
    with Loopback(*replies) as server, served_kernel(server, tmp_path) as running:
        result = running.run(
            "%%hermes --approve all\ngo",
            allow_stdin=True,
            stop_on=f"terminal sleep {seconds}",
            stop_delay=1.0,
        )
        assert result.status == "error"
        assert result.stop_seconds < STOPS_WITHIN
        assert result.markdown.count("↳ ■") == 2
        look = ["pgrep", "-f", f"sleep {seconds}"]
        assert not subprocess.run(look, capture_output=True, check=False).stdout
        assert "No child agents" in running.run("%hermes jobs").markdown
        after = running.run("%hermes and now?")
        assert "On we go." in after.markdown, after.error
    # What the provider gets then is a valid conversation: the call has its result.
    messages = server.bodies[-1]["messages"]
    assert [m["role"] for m in messages[1:4]] == ["user", "assistant", "tool"]


class Family(Loopback):
    """A provider that is a parent and its children, by what it is asked, in whatever order."""

    def take(self, exchange):
        super().take(exchange)
        messages = exchange.json["messages"]
        last = messages[-1]
        said = str(messages[1]["content"])
        name = said[-1]
        if messages[0]["content"].startswith("You are a child agent"):
            if last["role"] == "user":
                return calls(("read_file", {"path": f"{name}.txt"}))
            return says(f"{name} has {len(last['content'])} letters")
        if last["role"] == "user" and said.startswith("Count"):
            tasks = {"tasks": [f"read file {name}" for name in "abc"]}
            return calls(("delegate_task", tasks))
        if last["role"] == "tool":
            return says(f"All in all: {len(last['content'])}")
        return says("yes")


@pytest.mark.kernel
@pytest.mark.slow
def test_a_notebook_with_children_and_a_map_replays_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("HERMES_NB_CASSETTE", raising=False)
    folder = tmp_path / "story"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"birds {name} " * 9)
    sources = (
        "%load_ext hermes_nb",
        "%%hermes\nCount the birds in all files.",
        '%hermes map --into t "Are there birds?" *.txt',
        "print([row['answer'] for row in t])",
    )
    path = write(folder / "birds.ipynb", *sources)
    with Family(says("")) as server:
        env = {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "loopback"}
        run_notebook(path, mode="record", env=env)
        assert len(server.exchanges) == 1 + 6 + 1 + 3
    for _ in range(2):  # nobody is asked, in an empty home, and what is shown is the same
        run_notebook(path, env={"HERMES_NB_BASE_URL": "", "HERMES_NB_LOCAL_SERVERS": "0"})
