"""Several models as one: references side by side, an aggregator that weighs, acts and streams."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import ExitStack

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import ReasoningDelta, TextDelta, UsageReported
from hermes_nb.extras.mixture.model import Mixture, Reference
from hermes_nb.models.scripted import ScriptedModel

from tests.conftest import take_turn
from tests.core.grammar import check_grammar
from tests.faults.stores import finished, run_python
from tests.loopback import (
    Loopback,
    Reply,
    calls,
    failure,
    pause,
    says,
    stall,
    stream,
    text_chunks,
    usage_chunk,
)


def configured(home, references, aggregator, *, more=""):
    """Write a home whose mixture `careful` has these servers; a dict has further settings."""
    lines = ["hermes_nb:", "  mixture:", "    careful:", "      references:"]
    for number, (server, more_of_it) in enumerate(references, start=1):
        one = {"model": f"reference-{number}", "base_url": server.url, **more_of_it}
        lines.append(f"        - {one}".replace("'", '"'))
    lines.append(f'      aggregator: {{"model": "weighs", "base_url": "{aggregator.url}"}}')
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text("\n".join([*lines, more, ""]), encoding="utf-8")


def late(text, seconds):
    """Return a reply that comes after some seconds."""
    return Reply([pause(seconds), *stream(text_chunks(text)).steps])


def reports(turn):
    return [(e.purpose, e.usage.requests) for e in turn.events if isinstance(e, UsageReported)]


def test_references_answer_once_a_prompt_and_the_aggregator_acts(home, tmp_path):
    (tmp_path / "a.csv").write_text("n\n1\n")
    reading = calls(("read_file", {"path": "a.csv"}))
    priced = stream([*text_chunks("It is one."), usage_chunk(cost=0.02)], usage=False)
    with (
        Loopback(priced) as first,
        Loopback(says("It is two.")) as second,
        Loopback(reading, says("One: I looked."), says("And again.")) as weighs,
    ):
        configured(home, [(first, {"temperature": 0.9}), (second, {})], weighs)
        with Hermes("mixture:careful", cwd=tmp_path) as hermes:
            turn = hermes.ask("What is in a.csv?")
            assert (turn.text, turn.model) == ("One: I looked.", "mixture:careful")
            hermes.ask("Sure?")
            stored = [message.text for message in hermes.messages]
            spent = hermes._opening.session().by_job
    check_grammar(turn.events)
    assert reports(turn) == [("reference", 1), ("reference", 1), ("", 1), ("", 1)]
    assert turn.usage.requests == 4
    assert spent["reference", "loopback"].requests == 4
    assert [len(server.bodies) for server in (first, second, weighs)] == [2, 2, 3]
    asked, went_on, again = ([m["content"] for m in body["messages"]] for body in weighs.bodies)
    assert "It is one." in str(asked[-1]) and "It is two." in str(asked[-1])
    assert went_on[: len(asked)] == asked and again[: len(went_on)] == went_on
    assert not any("It is one." in text for text in stored), "the advice is no one's message"
    assert first.bodies[0]["temperature"] == 0.9 and "temperature" not in second.bodies[0]
    assert first.bodies[0]["tool_choice"] == "none"
    told = "".join(e.text for e in turn.events if isinstance(e, ReasoningDelta))
    assert re.search(
        r"\*\*reference-1\*\* · 1 request · 10 in · 5 out · \$0\.02\d* · [\d.]+ s", told
    )
    assert "It is two." in told
    assert spent["reference", "loopback"].cost == pytest.approx(0.04)


def test_one_may_fail_and_one_may_take_too_long(home, tmp_path):
    with (
        Loopback(failure(401)) as refusing,
        Loopback(Reply([stall])) as silent,
        Loopback(says("Forty-two.")) as fine,
        Loopback(says("42.")) as weighs,
    ):
        configured(home, [(refusing, {}), (silent, {"seconds": 0.3}), (fine, {})], weighs)
        with Hermes("mixture:careful", cwd=tmp_path) as hermes:
            turn = hermes.ask("How many?")
        assert silent.exchanges[0].left.wait(5), "its connection is closed"
    assert turn.text == "42."
    assert str(weighs.bodies[0]["messages"][-1]).count("## Answer") == 1
    told = "".join(e.text for e in turn.events if isinstance(e, ReasoningDelta))
    assert "no answer within 0.3 s" in told
    assert "**reference-1** · failed: the provider refused the API key" in told


def test_where_all_fail_the_aggregator_answers_alone_and_a_fallback_where_it_fails(home, tmp_path):
    with (
        Loopback(failure(401)) as refusing,
        Loopback(failure(401)) as weighs,
        Loopback(says("From the last one.")) as last,
    ):
        more = f"fallback_providers: [{{model: last, base_url: '{last.url}'}}]"
        configured(home, [(refusing, {})], weighs, more=more)
        with Hermes("mixture:careful", cwd=tmp_path) as hermes:
            turn = hermes.ask("How many?")
    assert turn.text == "From the last one."
    assert "Answer 1" not in str(weighs.bodies) + str(last.bodies)


def test_references_are_asked_at_the_same_time(home, tmp_path):
    everyone = threading.Barrier(4, timeout=60)  # each answers once all four have been asked

    with ExitStack() as stack:
        reply = Reply([lambda _: everyone.wait() and None, *says("yes").steps])
        servers = [stack.enter_context(Loopback(reply)) for _ in range(4)]
        weighs = stack.enter_context(Loopback(says("Yes.")))
        configured(home, [(server, {}) for server in servers], weighs)
        with Hermes("mixture:careful", cwd=tmp_path) as hermes:
            assert hermes.ask("Is it?").text == "Yes."
    assert str(weighs.bodies[0]["messages"][-1]).count("## Answer") == 4


def test_a_stop_leaves_no_request_behind():
    async def story():
        with Loopback(Reply([stall])) as one, Loopback(Reply([stall])) as two:
            from hermes_nb.models.chat.client import OpenAIChat

            references = [Reference(model=OpenAIChat("m", base_url=s.url)) for s in (one, two)]
            mixture = Mixture("m", references, ScriptedModel(["never"]))
            from hermes_nb.core.loop import Agent

            agent = Agent(mixture)

            async def turn():
                async for _ in agent.run("go"):
                    pass

            task = asyncio.create_task(turn())
            while not (one.exchanges and two.exchanges):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert one.exchanges[0].left.wait(5) and two.exchanges[0].left.wait(5)
            await mixture.aclose()
            return agent.messages

    messages = asyncio.run(story())
    assert [m.role for m in messages] == ["user", "assistant"]


def test_a_replay_needs_none_of_the_models(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(tmp_path / "story.hermes.jsonl"))
    with Loopback(says("It is one.")) as first, Loopback(says("One.")) as weighs:
        configured(home, [(first, {})], weighs)
        monkeypatch.setenv("HERMES_NB_CASSETTE", "record")
        with Hermes("mixture:careful", cwd=tmp_path) as hermes:
            told = hermes.ask("How many?")
    monkeypatch.setenv("HERMES_NB_CASSETTE", "replay")
    with Hermes("mixture:careful", cwd=tmp_path) as hermes:
        again = hermes.ask("How many?")
    assert again.events == told.events
    assert reports(again) == [("reference", 1), ("", 1)]


def test_guidance_and_summaries_are_the_aggregators_own(make_agent):
    reference = ScriptedModel(["advice"])
    weighs = ScriptedModel(["", "There."])
    agent = make_agent()
    agent.model = Mixture("m", [Reference(model=reference)], weighs)
    events = take_turn(agent)
    assert events[-1].reason == "answered"
    assert len(reference.requests) == 1, "a nudge is no prompt"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{careful: {references: []}}", "needs references"),
        ("{careful: {references: [gpt-5, 'mixture:other']}}", "not a known model"),
        ("{careful: {references: [{model: a, temperature: hot}]}}", "temperature is 'hot'"),
        ("[gpt-5]", "expected a group of keys"),
        ("{careful: {references: [gpt-5]}}", "available: mixture:careful"),
    ],
)
def test_a_mixture_that_cannot_be_is_said(home, tmp_path, config, problem):
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(f"hermes_nb: {{mixture: {config}}}\n", encoding="utf-8")
    with (
        pytest.raises(ConfigError, match=problem),
        Hermes("mixture:wild", cwd=tmp_path) as hermes,
    ):
        hermes.ask("go")


def test_text_streams_from_the_aggregator(make_agent):
    agent = make_agent()
    agent.model = Mixture("m", [Reference(model=ScriptedModel(["x"]))], ScriptedModel(["a b c"]))
    deltas = [e.text for e in take_turn(agent) if isinstance(e, TextDelta)]
    assert deltas == ["a ", "b ", "c"]


FIRST = """
import importlib.abc, sys, time


class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "openai":
            time.sleep(1.5)


sys.meta_path.insert(0, Slow())
from hermes_nb import Hermes

with Hermes("mixture:careful", cwd=sys.argv[1]) as hermes:
    turn = hermes.ask("How many?")
print(*(event.text for event in turn.events if hasattr(event, "text")))
"""


def test_the_first_import_of_the_client_is_not_on_a_references_time(home, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with (
        Loopback(says("It is one.")) as fast,
        Loopback(late("Too late.", 3.0)) as slow,
        Loopback(says("One.")) as weighs,
    ):
        configured(home, [(fast, {"seconds": 1}), (slow, {"seconds": 1})], weighs)
        told = "\n".join(finished(run_python(FIRST, tmp_path)))
        asked = weighs.bodies[0]["messages"][-1]["content"]
    assert "It is one." in asked and "Too late." not in asked
    assert told.count("no answer within 1 s") == 1
