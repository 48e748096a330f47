"""`jupyter hermes acp`: a real process, the official client, and a model on this machine."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path

import acp
import psutil
import pytest
from acp import schema
from hermes_nb.extras.acp.updates import Streamed
from hermes_nb.safety.redact import redact
from hypothesis import given
from hypothesis import strategies as st

from tests.extras.acp.clients import editor, opened, picks, said
from tests.loopback import calls, chunk, says, stall, stream
from tests.patience import until

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
SECRET = "sk-proj-abcdefghijklmnopqrstuvwx0123456789ABCDEFGHIJ"
UNKNOWN, AUTHENTICATION, INVALID = -32002, -32000, -32602


def writes(text="new\n", path="a.txt"):
    return calls(("write_file", {"path": path, "content": text}))


def runs(command):
    return calls(("terminal", {"command": command, "timeout": 300}))


def cancelled(_):
    return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))


def fails(_):
    raise acp.RequestError.internal_error({})


def never(_):
    return asyncio.Event().wait()


async def began(folder):
    """Wait until the command runs."""
    for _ in range(3_000):
        if (folder / "began").exists():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the command did not start")


def sleeping(seconds):
    """Say whether that command still runs."""
    return any(
        each.info["cmdline"] == ["sleep", seconds] for each in psutil.process_iter(["cmdline"])
    )


async def test_a_turn_streams_thoughts_text_plan_usage_and_a_title(serve, tmp_path):
    thinking = [
        chunk({"reasoning_content": "let me see "}),
        chunk({"content": "The key is sk-proj"}),
    ]
    rest = [chunk({"content": SECRET[7:]}), chunk({"content": " there."}), chunk(finish="stop")]
    plan = calls(("todo", {"items": ["[x] read", "[>] write", "[ ] check"]}))
    server = serve(plan, stream([*thinking, *rest]))
    async with editor(HERMES_NB_WINDOW="50000", HERMES_NB_VISION="true") as (client, agent, _):
        session = await opened(agent, tmp_path)
        await client.until(lambda: client.of("available_commands_update"))
        link = acp.resource_link_block("a", (tmp_path / "a.txt").as_uri())
        note = acp.embedded_text_resource("https://example.org/x", "attached words")
        picture = acp.image_block(PNG, "image/png")
        ended = await said(agent, session, "hi", link, acp.resource_block(note), picture)
        assert ended.stop_reason == "end_turn" and ended.usage.input_tokens == 20
        assert client.text == "The key is [redacted] there."
        assert [t.content.text for t in client.of("agent_thought_chunk")] == ["let me see "]
        (shown,) = client.of("plan")
        states = ["completed", "in_progress", "pending"]
        assert [(entry.content, entry.status) for entry in shown.entries] == [
            *zip(["read", "write", "check"], states, strict=True)
        ]
        assert not client.of("tool_call") and not client.of("tool_call_update")
        assert client.of("usage_update")[-1].used == 15
        assert client.of("session_info_update")[0].title == "hi"
        with pytest.raises(acp.RequestError) as wrong:
            await said(agent, session, acp.image_block("AAAA", "image/png"))
        assert "PNG" in str(wrong.value)
    asked = str(server.bodies[0]["messages"][1:])
    assert "attached words" in asked and "a.txt" in asked and PNG in asked


async def test_questions_are_answered_by_the_user_alone(serve, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    texts = [str(number) for number in range(7)]
    replies = [reply for text in texts for reply in (writes(text), says("done"))]
    serve(*replies)
    refusals = [picks("deny"), cancelled, picks("outside"), picks("run"), fails]
    async with editor(*refusals, picks("once"), picks("always")) as (client, agent, _):
        session = await opened(agent, tmp_path)
        for _ in refusals:
            await said(agent, session, "write")
            assert file.read_text() == "old\n"
            assert client.of("tool_call_update")[-1].status == "failed"
        (call, options), *_ = client.asked
        diff = call.content[0]
        assert options == ["once", "always", "deny"] and call.title == "write_file a.txt"
        assert (diff.path, diff.old_text, diff.new_text) == (str(file), "old\n", "0")
        assert client.of("tool_call")[0].locations[0].path == str(file)
        await said(agent, session, "write")
        assert file.read_text() == "5"
        await said(agent, session, "write")
        assert file.read_text() == "6" and len(client.asked) == 7
        assert client.of("tool_call_update")[-1].status == "completed"


async def test_always_and_modes_ask_no_more(serve, tmp_path):
    server = serve(writes("1"), writes("2"), says("done"), writes("3", "b.txt"), says("done"),
                   writes("4", "c.txt"), says("done"))  # fmt: skip
    async with editor(picks("always")) as (client, agent, _):
        made = await agent.new_session(cwd=str(tmp_path))
        assert [mode.id for mode in made.modes.available_modes] == ["ask", "edits", "all", "never"]
        assert made.modes.current_mode_id == "ask"
        session = made.session_id
        await said(agent, session, "write twice")
        assert (tmp_path / "a.txt").read_text() == "2" and len(client.asked) == 1
        await agent.set_session_mode(session_id=session, mode_id="edits")
        await said(agent, session, "write")
        assert (tmp_path / "b.txt").read_text() == "3" and len(client.asked) == 1
        await agent.set_session_mode(session_id=session, mode_id="never")
        await said(agent, session, "write")
        assert not (tmp_path / "c.txt").exists() and len(client.asked) == 1
        with pytest.raises(acp.RequestError):
            await agent.set_session_mode(session_id=session, mode_id="root")
        requests = len(server.exchanges)
        assert "Undone" in (await _command(client, agent, session, "/undo"))
        assert "Undone" in (await _command(client, agent, session, "/undo"))
        assert len(server.exchanges) == requests and not (tmp_path / "b.txt").exists()
    async with editor(HERMES_NB_CEILING="ask") as (_, agent, _):
        made = await agent.new_session(cwd=str(tmp_path))
        assert [mode.id for mode in made.modes.available_modes] == ["ask", "never"]
        with pytest.raises(acp.RequestError):
            await agent.set_session_mode(session_id=made.session_id, mode_id="all")


async def _command(client, agent, session, text):
    before = len(client.text)
    await said(agent, session, text)
    return client.text[before:]


async def test_a_cancelled_prompt_stops_commands_questions_and_requests(serve, tmp_path):
    endless = stream([chunk({"content": "more "})] * 3, done=False, usage=False)
    endless.steps = [*endless.steps, stall]
    serve(runs("touch began && sleep 321"), writes(), endless, says("still here"))
    async with editor(picks("once"), never) as (client, agent, _):
        session = await opened(agent, tmp_path)
        turn = asyncio.create_task(said(agent, session, "run"))
        await began(tmp_path)
        with pytest.raises(acp.RequestError):
            await said(agent, session, "at the same time")
        await agent.cancel(session_id=session)
        assert (await turn).stop_reason == "cancelled"
        assert until(lambda: not sleeping("321"))
        assert client.of("tool_call_update")[-1].status == "failed"
        turn = asyncio.create_task(said(agent, session, "write"))
        await client.until(lambda: len(client.asked) == 2)
        await agent.cancel(session_id=session)
        assert (await turn).stop_reason == "cancelled" and not (tmp_path / "a.txt").exists()
        turn = asyncio.create_task(said(agent, session, "talk"))
        await client.until(lambda: "more more " in client.text)
        await agent.cancel(session_id=session)
        assert (await turn).stop_reason == "cancelled"
        await agent.cancel(session_id=session)  # nothing runs
        assert (await said(agent, session, "and now?")).stop_reason == "end_turn"
        assert client.text.endswith("still here")


@pytest.mark.parametrize("waits_for", ["an answer", "a command"])
async def test_a_client_that_dies_ends_its_turn(serve, tmp_path, waits_for):
    serve(runs("touch began && sleep 322"), says("done"))
    answer = picks("once") if waits_for == "a command" else never
    async with editor(answer) as (client, agent, process):
        session = await opened(agent, tmp_path)
        turn = asyncio.create_task(said(agent, session, "run"))
        await client.until(lambda: client.asked)
        if waits_for == "a command":
            await began(tmp_path)
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 30)
        turn.cancel()
    assert process.returncode == 0 and until(lambda: not sleeping("322"))
    assert (tmp_path / "began").exists() == (waits_for == "a command")


async def test_sessions_are_listed_loaded_resumed_and_closed(serve, tmp_path):
    serve(writes(), says("written"), says("again"), says("resumed"))
    other = tmp_path / "other"
    other.mkdir()
    async with editor(picks("once")) as (client, agent, _):
        session = await opened(agent, tmp_path)
        empty = await opened(agent, other)
        await said(agent, session, "write it")
        await agent.close_session(session_id=empty)
        with pytest.raises(acp.RequestError) as closed:
            await said(agent, empty, "hello?")
        assert closed.value.code == UNKNOWN
    async with editor() as (client, agent, _):
        (found,) = (await agent.list_sessions()).sessions
        assert (found.session_id, found.cwd, found.title) == (session, str(tmp_path), "write it")
        assert not (await agent.list_sessions(cwd=str(other))).sessions
        await agent.load_session(session_id=session, cwd=str(tmp_path), mcp_servers=[])
        await client.until(lambda: client.text == "written")
        assert [each.session_update for each in client.updates[:4]] == [
            "user_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk",
        ]  # fmt: skip
        assert client.updates[0].content.text == "write it" and client.text == "written"
        assert client.updates[2].status == "completed"
        await said(agent, session, "and?")
        assert client.text == "writtenagain"
        await agent.close_session(session_id=session)
        client.updates.clear()
        await agent.resume_session(session_id=session, cwd=str(tmp_path))
        assert (await _command(client, agent, session, "more")) == "resumed"
        for folder, wanted, code in (
            (tmp_path, "20200101-nothing", UNKNOWN),
            (tmp_path / "missing", session, INVALID),
            (Path("relative"), session, INVALID),
        ):
            with pytest.raises(acp.RequestError) as wrong:
                await agent.load_session(session_id=wanted, cwd=str(folder), mcp_servers=[])
            assert wrong.value.code == code


async def test_a_missing_key_is_an_authentication_error(tmp_path, home, monkeypatch):
    monkeypatch.setenv("HERMES_NB_LOCAL_SERVERS", "off")
    monkeypatch.setenv("HERMES_NB_MODEL", "gpt-5")
    async with editor() as (_, agent, _):
        session = await opened(agent, tmp_path)
        with pytest.raises(acp.RequestError) as lacking:
            await said(agent, session, "hi")
        assert lacking.value.code == AUTHENTICATION
        assert "no API key" in lacking.value.data["details"]
        with pytest.raises(acp.RequestError):
            await agent.authenticate(method_id="other")


async def test_a_client_hands_over_mcp_servers(serve, tmp_path):
    server = Path(__file__).parents[2] / "tools" / "mcp" / "server.py"
    search = calls(("mcp_search", {"query": "draw a dot"}))
    serve(
        search,
        search,
        search,
        calls(("mcp_call", {"tool": "mcp__mine__picture", "arguments": {}})),
        says("done"),
    )
    mine = schema.McpServerStdio(
        name="mine", command=sys.executable, args=[str(server), "stdio"], env=[]
    )
    async with editor(picks("once")) as (client, agent, _):
        session = await opened(agent, tmp_path, mcp_servers=[mine])
        await said(agent, session, "draw")
        shown = client.of("tool_call_update")[-1].content
        assert len(client.asked) == 1, shown
        images = [block.content.data for block in shown if block.content.type == "image"]
        assert len(images) == 1 and base64.b64decode(images[0]), shown
        old = schema.SseMcpServer(type="sse", name="old", url="http://127.0.0.1:1", headers=[])
        with pytest.raises(acp.RequestError):
            await opened(agent, tmp_path, mcp_servers=[old])


@given(
    st.lists(st.sampled_from(["a", "word ", "\n", "\n\n", "sk-", SECRET, " = ", "é"])), st.data()
)
def test_streamed_text_is_complete_and_without_secrets(pieces, data):
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    stream = Streamed()
    ends = [*cuts, len(text)]
    sent = [stream.add(text[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    shown = "".join([*sent, stream.rest()])
    assert SECRET not in shown or SECRET in redact(text)
    if redact(text) == text:
        assert shown == text
