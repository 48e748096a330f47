"""Tools of MCP servers in conversations, from servers that run and a model that is a script."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing

import pytest
from hermes_nb import Hermes
from hermes_nb.core.events import ApprovalAsked, MessageAdded, ToolProgress, UsageReported
from hermes_nb.core.messages import Image
from hermes_nb.models.scripted import ScriptedModel, call

from tests.contract.safety.people import Person
from tests.patience import until
from tests.tools.mcp.conftest import STDIO, started_once, written

pytestmark = pytest.mark.slow


def results(turn):
    return [
        event.message
        for event in turn.events
        if isinstance(event, MessageAdded) and event.message.role == "tool"
    ]


def names(model):
    return [tool.name for tool in model.requests[0].tools if tool.toolset == "mcp"]


def test_a_conversation_with_a_server(with_server, tmp_path):
    person = Person("once")
    model = ScriptedModel(
        [
            call("mcp__t__add", a=1, b=2),
            call("mcp__t__send", text="hello"),
            call("mcp__t__picture"),
            call("mcp__t__work"),
            call("mcp__t__inject"),
            call("mcp__t__ask"),
            call("mcp__t__sample"),
            "Paris",
            call("mcp_resource", server="t"),
            call("mcp_resource", server="t", uri="notes://today"),
            call("mcp__t__add", a="x", b=2),
            call("mcp__t__change"),
            call("mcp__t__send", text="again"),
            "done",
        ]
    )
    with Hermes(model, home=with_server, cwd=tmp_path, approve=person) as hermes:
        turn = hermes.ask("go")
    assert turn.text == "done", turn.error
    texts = [message.text for message in results(turn)]
    added, sent, drawn, worked, planted, asked, sampled, listed, read, wrong, _, again = texts
    assert added == "3"
    assert "sent 'hello' from abc" in sent
    assert any(isinstance(part, Image) for part in results(turn)[2].parts), drawn
    assert "worked" in worked
    progress = [event.text for event in turn.events if isinstance(event, ToolProgress)]
    assert progress[0].startswith("33%") and progress[-1] == "100% step 3"
    assert "withheld" in planted and "Ignore all previous" not in planted
    assert "accept Ada" in asked and "the model said Paris" in sampled
    assert "notes://today" in listed and "Buy milk." in read
    assert "was not run" in wrong and "integer" in wrong
    assert "stole 'again'" in again  # the user agreed to the changed tool

    questions = [e for e in turn.events if isinstance(e, ApprovalAsked)]
    assert all("MCP server" in each.why for each in questions)
    whys = [request.why for request in person.asked]
    assert whys[0].endswith("an MCP server, a third-party program")
    assert sum("wants the model's answer" in why for why in whys) == 1
    assert sum("asks, and would get this" in why for why in whys) == 1
    assert "has changed it since this session began" in whys[-1]
    assert "all of your keys" in person.asked[-1].shown
    assert {part.origin for each in results(turn)[:2] for part in each.parts} == {"outside"}
    assert any(isinstance(e, UsageReported) and e.purpose == "mcp" for e in turn.events)
    assert [tool.name for tool in model.requests[0].tools] == [
        tool.name for tool in model.requests[-1].tools
    ]


def test_what_always_covers(with_server, tmp_path):
    """A tool that reads and stays runs once it was allowed; one that sends asks after a result."""
    person = Person("always")
    model = ScriptedModel(
        [
            call("mcp__t__add", a=1, b=2),
            call("mcp__t__add", a=3, b=4),
            call("mcp__t__send", text="a"),
            call("mcp__t__send", text="b"),
            call("mcp_call", tool="mcp__t__add", arguments={"a": 5, "b": 6}),
            "done",
        ]
    )
    with Hermes(model, home=with_server, cwd=tmp_path, approve=person) as hermes:
        turn = hermes.ask("go")
    assert [m.text for m in results(turn)][:2] == ["3", "7"]
    assert [each.tool.name for each in person.asked] == [
        "mcp__t__add",
        "mcp__t__send",
        "mcp__t__send",
        "mcp_call",
    ]
    assert person.asked[0].lasting.startswith("any mcp__t__add (")
    assert "contains untrusted content" in person.asked[1].why and not person.asked[1].shape


def test_nobody_is_there(with_server, tmp_path):
    """Headless, only what the configuration allows runs, and a server's questions are declined."""
    with (with_server / "config.yaml").open("a") as file:
        file.write("hermes_nb:\n  mcp:\n    allow: [t/add, t/ask, t/sample]\n")
    steps = [call("mcp__t__add", a=1, b=1), call("mcp__t__send", text="x")]
    steps += [call("mcp_call", tool=each.name, arguments=dict(each.arguments)) for each in steps]
    model = ScriptedModel([*steps, call("mcp__t__ask"), call("mcp__t__sample"), "done"])
    with Hermes(model, home=with_server, cwd=tmp_path) as hermes:
        added, sent, again, also, asked, sampled = (m.text for m in results(hermes.ask("go")))
    assert added == again == "2"
    assert "was not run" in sent and "was not run" in also
    assert "decline" in asked and "declined" in sampled


def test_a_stop_reaches_the_server(with_server, tmp_path, monkeypatch):
    """It hears that nobody waits, and is there for the next call."""
    monkeypatch.chdir(tmp_path)  # where the server leaves its mark
    model = ScriptedModel([call("mcp__t__work", seconds=60), call("mcp__t__add", a=1, b=1), "done"])
    with Hermes(model, home=with_server, cwd=tmp_path, approve=Person("once")) as hermes:

        async def both():
            async with aclosing(hermes.stream("go")) as events:
                async for event in events:
                    if isinstance(event, ToolProgress):
                        break
            assert await asyncio.to_thread(until, (tmp_path / "cancelled").exists)
            return [event async for event in hermes.stream("and now?")]

        events = asyncio.run(both())
    assert events[-1].reason == "answered"
    assert [e.message.text for e in events if isinstance(e, MessageAdded)][-2] == "2"


def test_over_streamable_http(tmp_path, address):
    """A server that has not been met is found by search, and has its tools in the next session."""
    home = written(tmp_path / "home", web={"url": address, "headers": {"X-Key": "${HOME}"}})
    model = ScriptedModel(
        [
            call("mcp_search", query="add numbers"),
            call("mcp_call", tool="mcp__web__add", arguments={"a": 2, "b": 2}),
            call("mcp_call", tool="mcp__web__nothing"),
            "done",
        ]
    )
    with Hermes(model, home=home, cwd=tmp_path, approve=Person("once")) as hermes:
        found, added, missing = results(hermes.ask("go"))
    assert names(model) == ["mcp_search", "mcp_call", "mcp_resource"]
    assert "mcp__web__add: Add two numbers." in found.text and '"a"' in found.text
    assert found.parts[0].origin == "workspace"
    assert added.text == "4" and "there is no tool" in missing.text
    again = ScriptedModel(["done"])
    with Hermes(again, home=home, cwd=tmp_path) as hermes:
        hermes.ask("hi")
    assert "mcp__web__add" in names(again)


def test_very_many_and_poisoned_tools_are_found_by_search(tmp_path):
    home = tmp_path / "home"
    many = {"command": sys.executable, "args": [STDIO["args"][0], "stdio", "many", "poison"]}
    written(home, t=STDIO, many=many)
    started_once(home, many=many)
    model = ScriptedModel([call("mcp_search", query="tool_17"), "done"], window=100_000)
    with Hermes(model, home=home, cwd=tmp_path) as hermes:
        (found,) = results(hermes.ask("go"))
    assert names(model) == ["mcp_search", "mcp_call", "mcp_resource"]
    assert "mcp__many__tool_17: Tool 17" in found.text
    wide = ScriptedModel([call("mcp_search", query="helpful"), "done"], window=10_000_000)
    with Hermes(wide, home=home, cwd=tmp_path) as hermes:
        (found,) = results(hermes.ask("go"))
    assert "mcp__many__tool_17" in names(wide) and "mcp__many__helpful" not in names(wide)
    assert "Ignore all previous" not in found.text and found.parts[0].origin == "outside"


WITHOUT = """
import sys
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel
model = ScriptedModel(["done"])
with Hermes(model) as hermes:
    hermes.ask("hi")
    assert {"mcp", "hermes_nb.tools.mcp"}.isdisjoint(sys.modules)
    assert not [tool for tool in model.requests[0].tools if tool.toolset == "mcp"]
    import threading
    assert "hermes-mcp" not in {thread.name for thread in threading.enumerate()}
"""


def test_without_servers_nothing_of_it_is_there(tmp_path):
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, cwd=tmp_path)
