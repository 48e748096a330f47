from __future__ import annotations

import asyncio

import pytest
from hermes_nb.agent.session.context_usage import schema_tokens
from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Approval
from hermes_nb.core.tools import Place, Risk
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.history import WriteOrigin
from hermes_nb.memory.recall import Recall
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.safety.guard import Guard
from hermes_nb.tools.asking import asking
from hermes_nb.tools.memory import memory_tools
from hermes_nb.tools.sessions import session_tools

from tests.conftest import take_turn
from tests.patience import SOON
from tests.tools.support import Answers, context_for
from tests.tools.support import told as run


@pytest.fixture
def curated(home):
    return CuratedMemory(home)


@pytest.fixture
def memory(curated):
    return memory_tools(curated).get("memory")


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "n.db")
    for text in ("the zebra is striped", "bread needs salt"):
        session = store.start(title=text[:9], notebook="/n.ipynb")
        store.append(session, Message.user(f"tell me: {text}"))
        store.append(session, Message.assistant(f"indeed, {text}"))
    yield store
    store.close()


def search(store, **options):
    return session_tools(Recall([store]), **options).get("session_search")


def test_schemas_are_small():
    tools = [*memory_tools(CuratedMemory("/nowhere")), *session_tools(Recall([]))]
    assert schema_tokens(tools) < 700


def test_the_agent_remembers(make_agent, curated, memory):
    agent = make_agent(
        call("memory", action="add", content="Tests run with pytest -q"),
        call("memory", target="user", operations=[{"action": "add", "content": "Likes tea"}]),
        "Noted.",
        tools=[memory],
    )
    take_turn(agent)
    assert curated.entries("memory") == ["Tests run with pytest -q"]
    assert curated.entries("user") == ["Likes tea"]
    assert [m.text for m in agent.messages if m.role == "tool"] == [
        "added; memory is at 1 % of 2,200 characters",
        "added; user is at 1 % of 1,375 characters",
    ]


def test_a_refusal_is_an_error_that_says_what_to_do(memory):
    run(memory, action="add", content="x" * 2_200)
    step = {"action": "remove", "old_text": "absent"}
    for arguments, said in [
        ({"action": "add", "content": "y"}, "Shorten, merge or remove"),
        (step, "no entry contains 'absent'"),
    ]:
        with pytest.raises(ToolError, match=said):
            run(memory, **arguments)


def test_a_call_may_have_more_steps_and_earlier_names(curated, memory):
    run(memory, action="add", content="tea")
    more = [{"action": "add", "content": "milk"}]
    run(memory, action="replace", old="tea", content="coffee", operations=more)
    assert curated.entries("memory") == ["coffee", "milk"]
    run(memory, operations=[{"action": "remove", "old_text": "milk"}])
    run(memory, action="replace", old_text="coffee", content="water")
    assert curated.entries("memory") == ["water"]
    assert memory.parameters["required"] == ["action"] and "old" in memory.parameters["properties"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "drop"},
        {"target": "world", "action": "add"},
        {"content": "x"},
        {"operations": [{"content": "x"}]},
        {"operations": [{"action": "add", "what": "x"}]},
        {"operations": "add"},
    ],
)
def test_wrong_arguments_never_reach_it(memory, arguments):
    assert "Expected memory(" in memory.check(arguments)


def test_a_write_is_recorded_and_told(curated):
    told = []
    memory = memory_tools(curated, on_written=told.append).get("memory")
    within = context_for(memory, place=Place(session="s", cell="c"))
    run(memory, within=within, action="add", content="likes tea")
    assert [change.after for outcome in told for change in outcome.changes] == ["likes tea"]
    assert curated.history()[0].origin == WriteOrigin(session="s", cell="c")
    assert curated.history()[0].id == told[0].records[0]


def test_it_asks_only_where_that_is_wanted(curated):
    assert memory_tools(curated).get("memory").risk is Risk.REMEMBER
    careful = memory_tools(curated, write_approval=True)
    person = Answers(Approval("once"), Approval("deny", "no"))
    tool = asking(careful, Guard(), person).get("memory")
    assert tool.risk is Risk.WRITE
    run(tool, action="add", content="likes tea\nand cake")
    with pytest.raises(ToolError, match="declined"):
        run(tool, action="replace", old_text="tea", content="likes coffee")
    with pytest.raises(
        ToolError, match="no entry contains"
    ):  # what fails anyway is not asked about
        run(tool, action="remove", old_text="absent")
    assert [request.shown for request in person.asked] == [
        "memory:\n+likes tea\n+and cake",
        "memory:\n-likes tea\n-and cake\n+likes coffee",
    ]
    assert curated.entries("memory") == ["likes tea\nand cake"]


def test_calls_of_one_reply_do_not_overtake_each_other(make_agent, curated, memory):
    curated.apply("memory", [{"action": "add", "content": "x" * 2_000}])
    agent = make_agent(
        [
            call("memory", action="remove", old_text="xxx"),
            call("memory", action="add", content="y" * 2_000),
        ],
        "done",
        tools=[memory],
    )
    take_turn(agent)
    assert curated.entries("memory") == ["y" * 2_000]


def test_the_gist_is_one_line(memory):
    assert memory.describe({"action": "add", "content": "a\nb"}) == "add memory: a b"
    steps = [{"action": "remove", "old_text": "x"}, {"action": "add", "content": "y"}]
    assert memory.describe({"operations": steps}) == "remove memory: x and 1 more"


def test_sessions_are_searched_read_and_listed(store):
    tool = search(store)
    found = run(tool, query="zebra")
    assert "tell me: the zebra is striped" in found and "bread" not in found
    session = store.sessions()[1].id
    assert session in found
    page = run(tool, session_id=session, around=1, window=1)
    assert "| 1* assistant: indeed" in page and "| 0 user" in page
    assert "1* assistant" in run(tool, session_id=session, query="indeed")
    listed = run(tool)
    assert listed.index("bread nee") < listed.index("the zebra")
    assert "nothing in past sessions" in run(tool, query="giraffe")


def test_the_running_session_is_no_result(store):
    session = store.sessions()[1].id
    tool = search(store)
    within = context_for(tool, place=Place(session=session))
    assert "nothing in past sessions" in run(tool, within=within, query="zebra")
    assert session not in run(tool, within=within)


def test_an_unknown_session_and_a_broken_store_are_said(store):
    with pytest.raises(ToolError, match="no session 'nobody'"):
        run(search(store), session_id="nobody")

    class Broken(SqliteStore):
        def search(self, query, **options):
            raise StoreError("disk I/O error")

    with pytest.raises(ToolError, match="cannot be searched now: disk"):
        run(search(Broken(":memory:")), query="x")


def test_results_can_be_condensed(store):
    tool = search(store, model=ScriptedModel(["It is striped."]))
    assert "| It is striped." in run(tool, query="zebra", summarize=True)
    without = run(search(store), query="zebra", summarize=True)
    assert "striped" in without and "not condensed" in without


def test_a_stop_ends_a_running_digest(store):
    class Slow(ScriptedModel):
        async def stream(self, request):
            await asyncio.sleep(60)
            yield

    tool = search(store, model=Slow([]))

    async def stopped():
        task = asyncio.ensure_future(
            tool.run(context_for(tool), {"query": "zebra", "summarize": True})
        )
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, SOON)

    asyncio.run(stopped())
