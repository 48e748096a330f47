"""Spans of turns, requests and calls: their names are literals here, as collectors know them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.models.scripted import ScriptedModel, call
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2
EXPORTER = InMemorySpanExporter()


@pytest.fixture
def spans(monkeypatch):
    """Switch them on, and return a function that gives those that have ended, by name."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(provider)
    EXPORTER.clear()
    monkeypatch.setenv("HERMES_NB_OTEL_ENABLED", "true")

    def ended():
        found = {}
        for span in EXPORTER.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found

    return ended


def above(span):
    return span.parent.span_id if span.parent else None


def test_a_turn_with_a_child(spans, tmp_path):
    steps = [
        call("list_files"),
        call("delegate_task", goal="look"),
        call("list_files"),
        "Nothing there.",
        "Done.",
    ]
    with Hermes(ScriptedModel(steps), cwd=tmp_path, tools=["files", "delegation"]) as hermes:
        turn = hermes.ask(f"go, my key is {KEY}")
        session = hermes.session_id
    found = spans()
    child, whole = found["invoke_agent hermes"]
    attributes = dict(whole.attributes)
    assert attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "hermes",
        "gen_ai.conversation.id": session,
        "gen_ai.usage.input_tokens": turn.usage.input
        - child.attributes["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": turn.usage.output
        - child.attributes["gen_ai.usage.output_tokens"],
        "hermes_nb.reason": "answered",
    }
    (delegated,) = found["execute_tool delegate_task"]
    inner, outer = sorted(
        found["execute_tool list_files"], key=lambda s: above(s) == above(delegated)
    )
    assert above(whole) is None and above(delegated) == above(outer) == whole.context.span_id
    assert above(child) == delegated.context.span_id and above(inner) == child.context.span_id
    assert dict(outer.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.provider.name": "openai",
        "gen_ai.tool.name": "list_files",
        "gen_ai.tool.call.id": outer.attributes["gen_ai.tool.call.id"],
        "gen_ai.tool.type": "function",
    }
    chats = found["chat scripted"]
    assert [above(each) for each in chats].count(whole.context.span_id) == 3
    assert len(chats) == 5
    assert chats[0].kind is trace.SpanKind.CLIENT
    assert chats[0].attributes["gen_ai.operation.name"] == "chat"
    assert chats[0].attributes["gen_ai.request.model"] == "scripted"
    assert chats[0].attributes["gen_ai.usage.input_tokens"] > 0
    assert all(s.start_time <= s.end_time for each in found.values() for s in each)
    assert delegated.start_time <= child.start_time <= child.end_time <= delegated.end_time
    told = "".join(span.to_json() for each in found.values() for span in each)
    assert "go, my key" not in told and "Nothing there" not in told


def test_words_only_where_they_are_wanted_and_without_secrets(spans, monkeypatch):
    monkeypatch.setenv("HERMES_NB_OTEL_CONTENT", "true")

    def note(text: str) -> str:
        """Take a note."""
        return text

    with Hermes(ScriptedModel([call("note", text=KEY), "Noted."]), tools=[note]) as hermes:
        hermes.ask(f"my key is {KEY}")
    found = spans()
    (whole,) = found["invoke_agent hermes"]
    said = json.loads(whole.attributes["gen_ai.output.messages"])
    assert said == [{"role": "assistant", "parts": [{"type": "text", "content": "Noted."}]}]
    assert "my key is" in whole.attributes["gen_ai.input.messages"]
    (noted,) = found["execute_tool note"]
    assert "text" in json.loads(noted.attributes["gen_ai.tool.call.arguments"])
    assert KEY not in "".join(span.to_json() for each in found.values() for span in each)


def test_what_fails_is_told(spans):
    def broken() -> str:
        """Break."""
        raise ValueError("no")

    failed = ModelError("quota", kind=FailureKind.QUOTA)
    with Hermes(ScriptedModel([call("broken"), failed]), tools=[broken]) as hermes:
        assert hermes.ask("go").reason == "failed"
    found = spans()
    for name in ("invoke_agent hermes", "execute_tool broken"):
        assert found[name][0].status.status_code is trace.StatusCode.ERROR
        assert found[name][0].attributes["error.type"]
    assert [each.status.is_ok for each in found["chat scripted"]] == [True, False]


def test_tasks_of_a_map_hang_below_it(spans, tmp_path):
    def look(name: str) -> str:
        """Look."""
        return name

    steps = ["Hi.", call("look", name="a"), "One.", call("look", name="b"), "Two."]
    with Hermes(ScriptedModel(steps), cwd=tmp_path, tools=[look]) as hermes:
        hermes.ask("hi")
        inputs = {"a": "1", "b": "2"}
        hermes.map("Look", inputs, tools=["look"], parallel=1)
        session = hermes.session_id
    found = spans()
    (whole,) = found["invoke_agent map"]
    turn, *tasks = found["invoke_agent hermes"]
    assert dict(whole.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "map",
        "gen_ai.conversation.id": session,
    }
    assert above(whole) is above(turn) is None
    assert [above(task) for task in tasks] == [whole.context.span_id] * 2
    assert all("gen_ai.conversation.id" not in task.attributes for task in tasks)
    called = found["execute_tool look"]
    assert [above(each) for each in called] == [task.context.span_id for task in tasks]
    asked = [above(each) for each in found["chat scripted"]]
    assert [asked.count(each.context.span_id) for each in (turn, *tasks)] == [1, 2, 2]


def test_a_review_is_a_trace_of_its_own_with_a_link(spans, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_MEMORY_NUDGE_INTERVAL", "1")
    saves = call("memory", action="add", target="user", content="Likes tables.")
    steps = ["Hi.", saves, "Saved."]
    with trace.get_tracer("test").start_as_current_span("mine") as mine:
        with Hermes(ScriptedModel(steps), home=tmp_path, tools=["memory"], learn=True) as hermes:
            hermes.ask("I like tables")
        assert hermes.learned
    found = spans()
    turn, review = found["invoke_agent hermes"]
    assert above(turn) == mine.get_span_context().span_id and above(review) is None
    assert [link.context.span_id for link in review.links] == [turn.context.span_id]
    assert review.context.trace_id != turn.context.trace_id
    (saved,) = found["execute_tool memory"]
    assert above(saved) == review.context.span_id and not saved.links
    of_review = [each for each in found["chat scripted"] if above(each) == review.context.span_id]
    assert len(of_review) == 2


def test_no_secret_stands_in_what_failed(spans):
    failed = ModelError(f"refused for {KEY} as it is", kind=FailureKind.QUOTA)
    with Hermes(ScriptedModel([failed]), tools=[]) as hermes:
        hermes.ask("go")
    assert "refused for" in (told := spans()["chat scripted"][0].to_json())
    assert KEY not in told


def test_nothing_of_it_is_imported_where_it_is_off(tmp_path):
    code = """
import sys
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel
Hermes(ScriptedModel(["Hi."])).ask("hi")
print([name for name in sys.modules if "opentelemetry" in name or "telemetry" in name])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_without_the_api_a_turn_says_what_is_missing(spans, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with (
        Hermes(ScriptedModel(["Hi."])) as hermes,
        pytest.raises(ConfigError, match=r"hermes_nb\[otel\]"),
    ):
        hermes.ask("hi")
