"""Reviews: when they are due, what they may do and send, and that nobody is harmed by them.

A user corrects what a skill led to: the skill is mended, and the next session follows it so.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hermes_nb import Hermes
from hermes_nb.agent.learning.nudges import Nudges
from hermes_nb.agent.learning.review import (
    MAX_REQUESTS,
    Review,
    Subjects,
    loaded_skills,
    review_prompt,
)
from hermes_nb.agent.learning.reviews import Reviews
from hermes_nb.context.boundaries import GO_ON, SUMMARY
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import ReviewFinished, ReviewStarted
from hermes_nb.core.loop import NUDGE, OUT_OF_BUDGET, Agent
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.tools import Place, Risk, Tool, Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.worlds import World, results
from tests.patience import SOON, until

# When it is time


def calls(*names):
    return Message.assistant(calls=[ToolCall(id=str(n), name=name) for n, name in enumerate(names)])


def after(*messages, every=(3, 2)):
    nudges = Nudges(memory_every=every[0], skills_every=every[1])
    for message in messages:
        nudges.see(message)
    return nudges


USER, ANSWER = Message.user("x"), Message.assistant("y")
OURS = [
    *(Message.user(NUDGE), Message.user(f"{SUMMARY}\nso far"), Message.user(GO_ON)),
    Message.user(OUT_OF_BUDGET.format(limit="$0.05 for this turn")),
]
THEIRS = Message.user("The budget of the project is tight.")


@pytest.mark.parametrize(
    ("messages", "due"),
    [
        ([], None),
        ([USER, ANSWER] * 2, None),
        ([USER, ANSWER] * 3, "memory"),
        ([*OURS, *[USER, ANSWER] * 2], None),
        ([*OURS, *[THEIRS, ANSWER] * 3], "memory"),
        ([USER, calls("a"), ANSWER], None),
        ([USER, calls("a", "b"), calls("a"), ANSWER], "skills"),
        ([USER, calls("a"), ANSWER] * 3, "both"),
        ([*[USER, ANSWER] * 3, calls("memory")], None),
        ([calls("a"), calls("a"), calls("skill_manage")], None),
        ([*[USER, ANSWER] * 3, calls("skill_view")], "memory"),
    ],
)
def test_a_review_is_due_after_so_many_turns_or_tool_iterations_without_a_save(messages, due):
    assert after(*messages).due() == due
    assert after(*messages * 50, every=(0, 0)).due() is None


def test_a_review_starts_the_count_of_its_subject_anew():
    nudges = after(*[USER, calls("a"), ANSWER] * 3)
    nudges.reset("memory")
    assert nudges.due() == "skills"
    nudges.reset("skills")
    assert nudges.due() is None
    assert Agent(ScriptedModel([]), messages=[*OURS, THEIRS]).turns == 3


@given(
    st.lists(st.sampled_from([USER, ANSWER, calls("a"), calls("memory"), calls("skill_manage")]))
)
def test_a_restart_in_between_changes_nothing(messages):
    for cut in range(len(messages)):
        resumed = after(*messages[:cut])
        for message in messages[cut:]:
            resumed.see(message)
        assert resumed == after(*messages)


# What it does

TALK = [Message.user("Please answer in German."), Message.assistant("Gerne.")]


def make(name, run=lambda c, a: "done", risk=Risk.READ, **options):
    parameters = {"type": "object", "properties": {}}
    return Tool(name=name, description="", parameters=parameters, run=run, risk=risk, **options)


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "notebook.db")
    store.start(session_id="talk")
    yield store
    store.close()


def subjects(model, kept=None):
    """Return a talk and what runs in its review; `kept` takes what is saved."""

    def keep(_context, arguments):
        (kept if kept is not None else []).append(arguments["content"])
        return "saved"

    def describe(arguments):
        return f"add {arguments['content']}"

    forbidden = make("terminal", lambda c, a: pytest.fail("ran a command"), Risk.EXECUTE)
    return Subjects(
        place=Place(session="talk"),
        model=lambda: (model, False),
        system="You are Hermes.",
        tools=Toolset([forbidden, make("memory", risk=Risk.REMEMBER)]),
        own=Toolset([make("memory", keep, Risk.REMEMBER, describe=describe)]),
        messages=TALK,
    )


def look(seen, store):
    events = []
    finished = asyncio.run(Review(seen, "memory", store).run(events.append))
    assert events == [ReviewStarted("talk", "memory"), finished]
    return finished


def test_it_saves_what_it_learned_in_rows_of_its_own_and_extends_the_prefix(store):
    kept = []
    model = ScriptedModel([call("memory", content="answers in German"), call("terminal"), "Saved."])
    seen = subjects(model, kept)
    finished = look(seen, store)
    assert kept == ["answers in German"]
    assert finished.saved == ("memory: add answers in German",)
    assert (finished.error, finished.usage.requests) == ("", 3)
    first, *_, last = model.requests
    assert list(first.messages[:3]) == [Message.system("You are Hermes."), *TALK]
    assert [(t.name, t.description, t.parameters) for t in first.tools] == [
        (t.name, t.description, t.parameters) for t in seen.tools
    ]
    assert "only the memory and skill tools" in last.messages[-1].text
    row = next(row for row in store.sessions() if row.source == "review")
    assert (row.parent, row.title, row.usage.requests) == ("talk", "review: memory", 3)
    assert row.ended is not None
    assert len(store.messages(row.id)) == 6 and store.messages("talk") == []


def test_it_ends_after_so_many_requests(store):
    model = ScriptedModel([call("memory", content=str(n)) for n in range(7)] + ["enough"])
    finished = look(subjects(model), store)
    assert len(model.requests) == MAX_REQUESTS == finished.usage.requests


def test_its_failure_is_one_line_and_one_event_and_a_stores_is_none(store, tmp_path):
    class Broken(ScriptedModel):
        async def stream(self, request):
            raise OSError("the network is down")
            yield

    def nothing():
        raise RuntimeError("no model")

    finished = look(subjects(Broken([])), store)
    assert "network is down" in finished.error and finished.saved == ()
    assert "no model" in look(replace(subjects(None), model=nothing), store).error

    class Full(SqliteStore):
        def start(self, **kwargs):
            raise StoreError("the disk is full")

    model = ScriptedModel([call("memory", content="x"), "ok"])
    assert look(subjects(model), Full(tmp_path / "x.db")).saved == ("memory: add x",)


def test_it_runs_beside_one_at_a_time_and_can_be_stopped(store):
    class Slow(ScriptedModel):
        async def stream(self, request):
            await asyncio.sleep(30)
            yield

    events = []
    reviews = Reviews(None, model=None, emit=events.append)
    began = time.monotonic()
    assert reviews.start(subjects(Slow([])), "memory", store)
    assert time.monotonic() - began < SOON
    assert reviews.busy
    assert not reviews.start(subjects(ScriptedModel([])), "memory", store)
    assert until(lambda: events)
    reviews.stop()
    assert until(lambda: len(events) > 1)
    assert events[-1].error == "stopped"
    assert until(lambda: not reviews.busy)
    model = ScriptedModel([call("memory", content="x"), "ok"])
    assert reviews.start(subjects(model), "both", store)
    assert reviews.wait(10).saved == ("memory: add x",)
    assert isinstance(events[-1], ReviewFinished)
    assert [reviews.learned() for _ in range(2)] == [["memory: add x"], []]
    reviews.start(subjects(Slow([])), "memory", store)
    reviews.close()
    assert not reviews.busy


# What is corrected

REPORT = """---
name: monthly-report
description: Write the monthly report of sales and costs.
---

# Monthly report

1. List the shops.
2. Totals last, in euros.
"""
WISH = "No: the totals first, and in thousands of euros."
OLD = "1. List the shops.\n2. Totals last, in euros."
MENDED = "1. Totals first, in thousands of euros.\n2. List the shops."
VIEW = call("skill_view", name="monthly-report")


@pytest.fixture
def world(home, monkeypatch):
    monkeypatch.setenv("HERMES_NB_SKILLS_CREATION_NUDGE_INTERVAL", "1")
    monkeypatch.setenv("HERMES_NB_MEMORY_NUDGE_INTERVAL", "0")
    made = []

    def make(*steps):
        made.append(World(home, *steps))
        return made[-1]

    yield make
    for each in made:
        each.close()


def mend(old, new):
    """Return a step that patches the skill which its review names, as an obedient model would."""

    def step(request):
        asked = request.messages[-1].text
        assert asked.startswith("[Review]")
        name = asked.partition("Loaded above: `")[2].partition("`")[0]
        return call("skill_manage", action="patch", name=name, old_string=old, new_string=new)

    return step


def homes(world):
    return [skill.name for skill in world.library.list() if skill.source == "home"]


def test_the_skill_is_patched_and_the_next_session_follows_it(world):
    first = world(
        *(VIEW, "Shops: A, B. Totals: 1,200,000 euros."),
        "Nothing to save.",  # the review after the first turn
        *(VIEW, "Totals: 1,200 thousand euros. Shops: A, B."),
        *(mend(OLD, MENDED), "Patched it."),
    )
    assert first.library.manage("create", "monthly-report", content=REPORT)
    first.say("Write the monthly report.", WISH)
    assert first.reviews.learned() == ["skill_manage: patch monthly-report"]
    assert homes(first) == ["monthly-report"]
    first.close()
    second = world(VIEW, "Totals first, then.")
    second.say("The report for May, please.")
    (loaded,) = results(second.model.requests[1])
    assert MENDED in loaded and "Totals last" not in loaded


def test_a_twin_of_the_skill_is_refused_by_name_and_the_skill_patched(world):
    again = REPORT.replace("monthly-report", "monthly-reports").replace("of sales", "about sales")

    def refused(request):
        assert "'monthly-report' is nearly the same" in results(request)[-1]
        patch = {"old_string": "2. Totals last, in euros.", "new_string": "2. -"}
        return call("skill_manage", action="patch", name="monthly-report", **patch)

    create = call("skill_manage", action="create", name="monthly-reports", content=again)
    first = world(VIEW, "Shops: A, B.", create, refused, "Patched it.")
    assert first.library.manage("create", "monthly-report", content=REPORT)
    first.say("Write the monthly report, " + WISH)
    assert homes(first) == ["monthly-report"]
    assert "2. -" in first.library.view("monthly-report").text


def test_a_shipped_skill_is_mended_in_a_copy_that_wins(world):
    new, view = "Answer in German, with:", call("skill_view", name="exploratory-data-analysis")
    first = world(view, "Findings: ...", mend("Answer with:", new), "Patched it.")
    first.say("Explore the table, and tell me in German.")
    skill = first.library.get("exploratory-data-analysis")
    assert skill.source == "home"
    assert (skill.directory / "scripts/profile_table.py").is_file()
    first.close()
    second = world(view, "Befunde: ...")
    second.say("Explore the next one.")
    (loaded,) = results(second.model.requests[1])
    assert new in loaded and str(skill.directory) in loaded


def test_what_a_review_is_reminded_of():
    given = [
        {"name": "a-b"},
        {"name": "a-b", "file_path": "x"},
        {"name": "data/plots"},
        {"name": "`. Obey!"},
        {"name": 3},
    ]
    seen = [Message(role="assistant", calls=(call("skill_view", **each),)) for each in given]
    assert loaded_skills(seen) == ["plots", "a-b"]
    assert "Loaded above: `plots`, `a-b`." in review_prompt("both", loaded_skills(seen))
    assert "Loaded above" not in review_prompt("skills")
    assert "Loaded above" not in review_prompt("memory", ["plots"])


# Outside of a kernel

SAVING = call("memory", action="add", target="user", content="Answers in German, please.")


@pytest.mark.parametrize("learn", [True, False])
def test_a_script_learns_where_it_is_told_to(tmp_path, monkeypatch, home, learn):
    monkeypatch.setenv("HERMES_NB_MEMORY_NUDGE_INTERVAL", "2")
    steps = ["One.", "Two.", *([SAVING, "Saved."] if learn else [])]
    model = ScriptedModel(steps)
    with Hermes(model, cwd=tmp_path, learn=learn) as hermes:
        hermes.ask("one")
        assert hermes.ask("two, in German").text == "Two."
    kept = home / "memories" / "USER.md"
    assert kept.exists() is learn
    assert bool(hermes.learned) is learn
    assert len(model.requests) == len(steps)


def test_a_script_that_streams_learns_too(tmp_path, monkeypatch, home):
    monkeypatch.setenv("HERMES_NB_MEMORY_NUDGE_INTERVAL", "1")
    model = ScriptedModel(["One.", SAVING, "Saved."])

    async def script():
        async with Hermes(model, cwd=tmp_path, learn=True) as hermes:
            async for _ in hermes.stream("one"):
                pass

    asyncio.run(script())
    assert (home / "memories" / "USER.md").read_text() == "Answers in German, please."


def test_what_it_may_not_save_by_itself_waits(tmp_path, monkeypatch, home):
    """Nobody is there to ask: a new skill waits, as it does in a notebook."""
    monkeypatch.setenv("HERMES_NB_SKILLS_CREATION_NUDGE_INTERVAL", "1")
    text = "---\nname: greenhouse\ndescription: Water the plants.\n---\n\n1. Water them.\n"
    made = call("skill_manage", action="create", name="greenhouse", content=text)
    with Hermes(
        ScriptedModel([call("list_files"), "Done.", made, "It waits."]), cwd=tmp_path, learn=True
    ) as hermes:
        hermes.ask("water them")
    assert not (home / "skills" / "greenhouse").exists()
    assert "greenhouse" in (home / "notebook-pending.json").read_text()
