"""Children as a whole: fresh, restricted, counted, stopped, stored, recorded and replayed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import aclosing, suppress
from types import SimpleNamespace

from hermes_nb import Hermes
from hermes_nb.agent import children
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import (
    ApprovalAsked,
    ChildFinished,
    ChildProgress,
    ChildStarted,
    ToolFinished,
    TurnEnded,
)
from hermes_nb.core.tools import Risk, Tool
from hermes_nb.memory import providers
from hermes_nb.memory.recall import Recall
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.cassette import Cassette
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.tools.schema import tool

from tests.core.grammar import check_grammar
from tests.patience import SOON, until

CHILD = "You are a child agent"


class Family:
    """A model that is the parent and all of its children, by what it is asked.

    `parent` are the parent's steps; `child(goal, request)` answers a child's request.
    """

    def __init__(self, *parent, child=lambda goal, request: f"report on {goal}", name="family"):
        self.requests = []
        self.parent = list(parent)
        self.child = child
        self.model = ScriptedModel([self.play] * 200, name=name)

    def play(self, request):
        self.requests.append(request)
        if request.messages[0].text.startswith(CHILD):
            return self.child(request.messages[1].text, request)
        step = self.parent.pop(0)
        return step(request) if callable(step) else step

    @property
    def children(self):
        return [r for r in self.requests if r.messages[0].text.startswith(CHILD)]


def ask(family, tmp_path, prompt="go", **options):
    with Hermes(family.model, cwd=tmp_path, **options) as hermes:
        turn = hermes.ask(prompt)
    check_grammar(turn.events)
    return turn


def reports(turn):
    text = next(m.text for m in turn.messages if m.role == "tool" and m.name == "delegate_task")
    return json.loads(text[text.index("{") : text.rindex("}") + 1])["results"]


def of_kind(turn, kind):
    return [event for event in turn.events if isinstance(event, kind)]


def first(do, then=lambda said: said):
    """Return a child that makes one call and reports on what came of it."""

    def child(goal, request):
        last = request.messages[-1]
        if last.role != "user":
            return then(last.text)
        return do(goal) if callable(do) else do

    return child


def one(tmp_path, child=None, *, goal="a", given=None, **options):
    """Return a turn with one child, its report and the family."""
    answers = {} if child is None else {"child": child}
    family = Family(call("delegate_task", goal=goal, **(given or {})), "done", **answers)
    turn = ask(family, tmp_path, **options)
    return turn, reports(turn)[0] if family.children else None, family


def test_children_start_afresh_and_report(tmp_path, home):
    home.mkdir()
    (home / "SOUL.md").write_text("I am a pirate called Bones.", encoding="utf-8")
    (tmp_path / "AGENTS.md").write_text("Always answer in Latin.", encoding="utf-8")
    family = Family(call("delegate_task", tasks=["a", "b"], context="the facts"), "all done")
    turn = ask(family, tmp_path, "my secret plan")
    assert turn.text == "all done"
    assert [(r["status"], r["summary"], r["requests"], r["files"]) for r in reports(turn)] == [
        ("done", "report on Task 1 of 2: a\n\nContext:\nthe facts", 1, []),
        ("done", "report on Task 2 of 2: b\n\nContext:\nthe facts", 1, []),
    ]
    for request in family.children:
        sent = "\n".join(message.text for message in request.messages)
        assert not any(word in sent for word in ("Bones", "Latin", "secret plan"))
    assert turn.usage.requests == 4
    assert sum(r["tokens"] for r in reports(turn)) == sum(
        e.usage.input + e.usage.output for e in of_kind(turn, ChildFinished)
    )


def test_a_child_has_what_the_parent_has_but_nothing_that_delegates_remembers_or_asks(tmp_path):
    schema = {"type": "object"}
    alone = Tool(name="plot", description="d", parameters=schema, run=print, exclusive=True)
    mine = Tool(name="weigh", description="d", parameters=schema, run=lambda *_: "3 kg")
    tools = [alone, mine, "files", "memory", "skills", "delegation", "sessions"]
    _, report, family = one(tmp_path, first(call("weigh")), tools=tools)
    assert "3 kg" in report["summary"]
    assert {tool.name for tool in family.children[0].tools} == {
        *("read_file", "write_file", "patch", "search_files", "list_files", "weigh"),
        *("session_search", "skills_list", "skill_view"),
    }
    writing = family.children[0].tools.get("write_file")
    assert writing.risk is Risk.WRITE and not writing.exclusive
    _, _, family = one(tmp_path, given={"toolsets": ["files"], "max_requests": 1})
    assert {tool.toolset for tool in family.children[0].tools} == {"files"}
    turn, none, _ = one(tmp_path, given={"toolsets": ["memory"]})
    assert none is None and "child agents cannot use 'memory'" in turn.messages[2].text


def test_what_would_ask_is_denied_and_what_may_run_is_named(tmp_path):
    asked = []

    class Approver:
        async def ask(self, request):
            asked.append(request)

    write = call("write_file", path="sub/a.txt", content="x")
    _, report, _ = one(tmp_path, first(write), approve=Approver())
    assert "a child agent cannot ask" in report["summary"] and report["files"] == []
    assert not asked and not (tmp_path / "sub").exists()
    both = [write, call("read_file", path="sub/a.txt")]
    _, report, _ = one(tmp_path, first(both), approve="edits")
    assert report["files"] == ["sub/a.txt"] and (tmp_path / "sub/a.txt").read_text() == "x"
    for mode in ("ask", "never"):
        _, report, _ = one(tmp_path, first(call("terminal", command="ls")), approve=mode)
        assert ("was not run" in report["summary"]) is (mode == "never")


def test_patches_of_one_file_by_several_children_all_arrive(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("".join(f"line {n}: no\n" for n in range(8)))

    def patch(goal):
        line = f"line {goal.rsplit(maxsplit=1)[-1]}: "
        return call("patch", path="list.txt", old=f"{line}no", new=f"{line}yes")

    tasks = [f"patch line {n}" for n in range(8)]
    family = Family(call("delegate_task", tasks=tasks), "done", child=first(patch))
    turn = ask(family, tmp_path, approve="edits")
    assert all(r["files"] == ["list.txt"] for r in reports(turn))
    assert path.read_text() == "".join(f"line {n}: yes\n" for n in range(8))


def test_at_most_three_at_a_time(tmp_path):
    family = Family(call("delegate_task", tasks=[str(n) for n in range(7)]), "done")
    turn = ask(family, tmp_path)
    running, most = set(), 0
    for event in turn.events:
        if isinstance(event, ChildStarted):
            running.add(event.number)
        elif isinstance(event, ChildFinished):
            running.discard(event.number)
        most = max(most, len(running))
    assert most == 3
    assert [r["task"] for r in reports(turn)] == list(range(1, 8))


def test_a_failure_is_a_result(tmp_path, monkeypatch):
    def child(goal, request):
        if "bad" in goal:
            told = "the key sk-proj-" + "a1B2" * 8 + " was revoked"
            raise ModelError(told, kind=FailureKind.AUTH)
        return "fine"

    family = Family(call("delegate_task", tasks=["bad one", "good one"]), "done", child=child)
    turn = ask(family, tmp_path)
    bad, good = reports(turn)
    assert (bad["status"], good["status"]) == ("failed", "done")
    assert "was revoked" in bad["error"] and "a1B2" not in bad["error"]
    assert turn.reason == "answered"

    def broken(_asked):
        raise RuntimeError("no luck")

    monkeypatch.setattr(children, "_message", broken)
    turn, *_ = one(tmp_path)
    assert reports(turn)[0]["error"] == "RuntimeError: no luck"


def test_requests_and_time_have_an_end(tmp_path, monkeypatch):
    def child(_goal, request):
        return call("list_files") if request.tool_choice == "auto" else "so far"

    _, report, _ = one(tmp_path, child, given={"max_requests": 2})
    assert (report["status"], report["summary"], report["requests"]) == ("budget", "so far", 3)

    monkeypatch.setenv("HERMES_NB_DELEGATION_CHILD_TIMEOUT_SECONDS", "1")
    started = time.monotonic()
    _, report, _ = one(tmp_path, first(call("terminal", command="sleep 60")), approve="all")
    assert report["error"] == "it did not finish within 1 s"
    assert time.monotonic() - started < SOON


def test_children_keep_to_the_parents_budget(tmp_path, monkeypatch):
    """Side by side, none of them may spend what another one is about to."""
    monkeypatch.setenv("HERMES_NB_BUDGET_TOKENS", "3500")
    monkeypatch.setenv("HERMES_NB_DELEGATION_MAX_CONCURRENT_CHILDREN", "12")
    family = Family(call("delegate_task", tasks=[str(n) for n in range(12)]), "done")
    with Hermes(family.model, cwd=tmp_path) as hermes:
        turn = hermes.ask("go")
    assert {"done", "budget"} == {r["status"] for r in reports(turn)}
    assert 2_000 < turn.usage.input + turn.usage.output <= 3_500


def test_a_stop_of_the_turn_stops_children_and_their_processes(tmp_path):
    mark = tmp_path / "alive"

    def child(_goal, _request):
        return call("terminal", command=f"for i in $(seq 1000); do date >> {mark}; sleep 0.1; done")

    family = Family(call("delegate_task", tasks=["a", "b"]), "done", child=child)

    async def story():
        async with Hermes(family.model, cwd=tmp_path, approve="all") as hermes:
            seen = []

            async def turn():
                async with aclosing(hermes.stream("go")) as events:
                    async for event in events:
                        seen.append(event)

            task = asyncio.create_task(turn())
            while not mark.exists():
                await asyncio.sleep(0.01)
            begun = time.monotonic()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            return seen, time.monotonic() - begun, list(hermes.jobs)

    seen, seconds, left = asyncio.run(story())
    check_grammar(seen)
    assert seconds < SOON
    assert seen[-1] == TurnEnded("interrupted")
    assert [e.status for e in seen if isinstance(e, ChildFinished)] == ["stopped"] * 2
    assert left == []
    size = mark.stat().st_size
    time.sleep(0.5)
    assert mark.stat().st_size == size


def test_one_child_can_be_stopped_alone(tmp_path):
    def child(goal, request):
        if "slow" in goal and request.messages[-1].role == "user":
            return call("terminal", command="sleep 30")
        return "quick report"

    family = Family(call("delegate_task", tasks=["slow", "quick"]), "done", child=child)
    with Hermes(family.model, cwd=tmp_path, approve="all") as hermes:

        def slow():
            return [j for j in hermes.jobs if "slow" in j.title and "sleep" in j.doing]

        def stop():
            until(slow, 60)
            slow()[0].stop()

        threading.Thread(target=stop, daemon=True).start()
        turn = hermes.ask("go")
        assert not len(hermes.jobs)
    check_grammar(turn.events)
    assert [r["status"] for r in reports(turn)] == ["stopped", "done"]
    assert turn.text == "done"


def test_what_a_child_reads_from_outside_its_report_is_from_outside(tmp_path):
    @tool(toolset="mcp")
    def fetch() -> str:
        """Fetch a page."""
        return "a page of somebody's"

    family = Family(
        call("delegate_task", goal="read the page"),
        call("memory", action="add", content="the user likes tea"),
        "done",
        child=first(call("fetch"), lambda _: "nothing of note"),
    )
    turn = ask(family, tmp_path, home=tmp_path / "home", tools=["delegation", "memory", fetch])
    assert reports(turn)[0]["summary"] == "nothing of note"
    (asked,) = of_kind(turn, ApprovalAsked)
    assert asked.call.name == "memory"
    assert "delegate_task contains untrusted content" in asked.why


def test_a_child_is_stored_found_and_never_offered(tmp_path, home):
    family = Family(
        call("delegate_task", goal="count the flamingos"), "done", child=lambda *_: "eleven ibises"
    )
    with Hermes(family.model, cwd=tmp_path) as hermes:
        turn = hermes.ask("go")
        parent = hermes.session_id
    store = SqliteStore(home / "notebook.db")
    child_id = of_kind(turn, ChildStarted)[0].session_id
    child = store.get(child_id)
    assert (child.source, child.parent, child.title) == ("child", parent, "count the flamingos")
    assert child.ended is not None
    assert child.usage.requests == 1 and store.get(parent).usage.requests == 2
    assert [m.text for m in store.messages(child_id)] == ["count the flamingos", "eleven ibises"]
    assert [each.id for each in store.sessions()] == [parent]
    assert store.lineage(parent) == [parent, child_id]
    recall = Recall([store])
    assert recall.discover("ibises")[0].lineage == parent
    assert not recall.discover("ibises", exclude_lineage=[parent])
    store.close()


def test_the_external_memory_hears_of_it(tmp_path, monkeypatch):
    heard = []

    class Provider:
        name = "notes"

        def __getattr__(self, what):
            def called(*arguments):
                heard.append((what, *arguments))
                return "" if what in ("static_block", "prefetch") else None

            return called

    point = SimpleNamespace(name="notes", module="theirs", load=lambda: lambda *_: Provider())
    monkeypatch.setattr(providers, "plugins", lambda *_: [point])
    monkeypatch.setenv("HERMES_NB_MEMORY_PROVIDER", "notes")
    one(tmp_path)
    assert ("on_delegation", "a", "report on a") in heard


def test_it_can_be_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_DELEGATION_ENABLED", "off")
    family = Family("done")
    ask(family, tmp_path)
    assert "delegate_task" not in family.requests[0].tools


def test_a_recording_replays_whatever_order_the_children_come_in(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    for name in "abc":
        (work / f"{name}.txt").write_text(f"content {name}")

    def child(goal, request):
        name = goal.split()[4]
        if request.messages[-1].role == "user":
            return call("read_file", path=f"{name}.txt")
        return f"{name}: {request.messages[-1].text}"

    begin = call("delegate_task", tasks=[f"{name} file" for name in "abc"])
    family = Family(begin, lambda r: "sum: " + r.messages[-1].text[-200:], child=child)
    tape = tmp_path / "story.jsonl"

    def told(model, home):
        monkeypatch.setenv("HERMES_HOME", str(tmp_path / home))
        with Hermes(model, cwd=work) as hermes:
            turn = hermes.ask("go")
        assert turn.reason == "answered", turn.error
        return reports(turn), turn.usage

    recorded = told(Cassette(family.model, tape, "record"), "one")
    assert [r["status"] for r in recorded[0]] == ["done"] * 3

    class Shuffled(Cassette):
        """The later a child was begotten, the sooner it is answered."""

        async def stream(self, request):
            said = request.messages[1].text
            if said.startswith("Task"):
                await asyncio.sleep(0.3 - 0.1 * int(said[5]))
            async with aclosing(super().stream(request)) as items:
                async for item in items:
                    yield item

    for attempt in range(3):
        assert told(Shuffled(None, tape, "replay"), f"again{attempt}") == recorded


def test_progress_names_the_tool_and_counts(tmp_path):
    turn, *_ = one(tmp_path, first(call("list_files"), lambda _: "report"))
    told = [(e.doing, e.usage.requests) for e in of_kind(turn, ChildProgress)]
    assert told == [("", 1), ("list_files .", 1), ("list_files .", 2)]
    assert of_kind(turn, ToolFinished)[0].status == "ok"
