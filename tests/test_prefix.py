"""The watch over prefixes, which would pass everything if it were broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.chat.retries import Fallback, Retrying
from hermes_nb.models.scripted import ScriptedModel

from tests.prefix import Prefixes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
FIRST = (Message.system("be"), Message.user("one"))
SECOND = (*FIRST, Message.assistant("1"), Message.user("two"))


def make_tool(description="x"):
    return Tool(name="x", description=description, parameters={}, run=lambda *_: "")


def broken(*requests, model=None, prefixes=None, agent=None):
    prefixes = prefixes or Prefixes()
    agent = agent or Agent(model or ScriptedModel([]))
    for each in requests:
        request = each if isinstance(each, Request) else Request(messages=tuple(each))
        prefixes.sent(agent, request)
    return prefixes.test_over()


def test_what_grows_is_fine():
    assert broken(FIRST, SECOND, SECOND) == []
    same = tuple(Message.from_dict(message.to_dict()) for message in FIRST)
    assert broken(same, SECOND, model=OpenAIChat("m", base_url="http://x/v1")) == []


def test_a_changed_message_is_shown_where_it_differs():
    [found] = broken(FIRST, (Message.system("be!"), *SECOND[1:]))
    assert found.startswith("request 2 of a session does not extend the one before it: message 0")
    assert "before: b'" in found
    assert 'be!"' in found


def test_a_lost_message_is_seen():
    assert "message 1 (user) differs" in broken(FIRST, FIRST[:1])[0]


def test_tools_are_compared_by_what_is_sent():
    def request(tool, messages=FIRST):
        return Request(messages=messages, tools=Toolset([tool]))

    assert broken(request(make_tool()), request(make_tool(), SECOND)) == []
    [found] = broken(request(make_tool()), request(make_tool("y"), SECOND))
    assert "the tools differ" in found


@pytest.mark.parametrize("wrap", [lambda m: m, Retrying, lambda m: Fallback([Retrying(m)])])
def test_the_bytes_are_compared_too(wrap):
    """Messages that compare equal need not be sent alike."""
    call = ToolCall(id="c", name="f", arguments={"a": 1, "b": 2})
    other = ToolCall(id="c", name="f", arguments={"b": 2, "a": 1})
    requests = [(Message.assistant(calls=[each]),) for each in (call, other)]
    assert requests[0] == requests[1]
    model = wrap(OpenAIChat("m", base_url="http://x/v1"))
    [found] = broken(*requests, model=model)
    assert found.startswith("on the wire, wire message 0 changed: at byte ")


def test_a_compression_begins_a_new_prefix():
    prefixes, agent = Prefixes(), Agent(ScriptedModel([]))
    assert broken(SECOND, prefixes=prefixes, agent=agent) == []
    prefixes.renewed(agent)
    assert broken(FIRST, prefixes=prefixes, agent=agent) == []
    assert broken(FIRST[:1], prefixes=prefixes, agent=agent)
    assert (prefixes.sessions, prefixes.requests) == (1, 3)


def test_a_resumed_session_goes_on_with_its_prefix():
    prefixes = Prefixes()
    first, second, stranger = (Agent(ScriptedModel([])) for _ in range(3))
    prefixes.resumed("s", first)
    prefixes.sent(first, Request(messages=SECOND))
    prefixes.resumed("s", second)
    prefixes.sent(stranger, Request(messages=FIRST))
    prefixes.sent(second, Request(messages=FIRST))
    assert len(prefixes.test_over()) == 1


STORY = """
import pytest
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message
from hermes_nb.models.scripted import ScriptedModel
from tests.conftest import take_turn

def story():
    agent = Agent(ScriptedModel(["1", "2"]), system="be")
    take_turn(agent)
    agent.system = "be otherwise"
    take_turn(agent)

def test_it():
    story()

@pytest.mark.new_prefix
def test_marked():
    story()
"""


def test_a_broken_prefix_fails_its_test(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("tests.prefix",)\n', encoding="utf-8")
    (tmp_path / "test_story.py").write_text(STORY, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", "--strict-markers"]
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "message 0 (system) differs" in done.stdout
    assert "prefixes: 4 requests of 2 sessions checked" in done.stdout
