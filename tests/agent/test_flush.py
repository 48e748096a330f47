"""The memory flush: one request, only the memory tool, and no trace of it."""

from __future__ import annotations

import asyncio

from hermes_nb.agent.session.flush import flush
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.tools import Place, Risk, Tool, Toolset
from hermes_nb.models.scripted import ScriptedModel, call

PARAMETERS = {"type": "object", "properties": {"content": {"type": "string"}}}
CALL = ToolCall(id="1", name="terminal", arguments={"command": "ls"})
SPAN = [
    Message.user("Always use polars. My key is sk-proj-" + "a1B2" * 12),
    Message.assistant(calls=[CALL]),
    Message.tool(CALL, "x" * 500_000 + " ERROR: port 8123 is taken " + "y" * 500_000),
    Message.assistant("Done."),
]


def memory(kept):
    def run(context, arguments):
        kept.append(arguments["content"])
        return "saved"

    return Toolset(
        [
            Tool(name="memory", description="", parameters=PARAMETERS, run=run, risk=Risk.REMEMBER),
            Tool(name="terminal", description="", parameters=PARAMETERS, run=run),
        ]
    )


def look(model, tools):
    return asyncio.run(flush(SPAN, model=model, memory=lambda _: tools, place=Place()))


def test_it_saves_and_says_what_it_used():
    kept = []
    model = ScriptedModel([call("memory", content="uses polars")])
    used = look(model, memory(kept))
    assert kept == ["uses polars"]
    assert [event.purpose for event in used] == ["memory"]
    (request,) = model.requests
    assert [tool.name for tool in request.tools] == ["memory"]


def test_the_model_reads_the_messages_cut_and_without_secrets():
    model = ScriptedModel(["Nothing to save."])
    look(model, memory([]))
    told = model.requests[0].messages[-1].text
    assert "Always use polars" in told
    assert "a1B2a1B2" not in told
    assert len(told) < 120_000


def test_without_a_memory_tool_nothing_is_asked():
    model = ScriptedModel([])
    assert look(model, Toolset()) == []
    assert model.requests == []
