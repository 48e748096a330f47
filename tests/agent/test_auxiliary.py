"""Work beside the conversation has models of its own, by job; the conversation's stands behind."""

from __future__ import annotations

import asyncio
import base64
from contextlib import closing

import pytest
from hermes_nb import Hermes
from hermes_nb.agent.models import Auxiliary, build_model
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import UsageReported
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import Request
from hermes_nb.memory.sessions import SqliteStore

from tests.agent.worlds import World
from tests.loopback import Loopback, calls, document, failure, says
from tests.notebook.conftest import desk, shell

__all__ = ["desk", "shell"]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def write(home, text):
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text(text, encoding="utf-8")


async def asked(model):
    request = Request(messages=(Message.user("go"),))
    (reply,) = [item async for item in model.stream(request) if isinstance(item, Reply)]
    return reply.message.text


def answer(model):
    async def story():
        said = await asked(model)
        await model.aclose()
        return said

    return asyncio.run(story())


def test_each_job_has_its_own_address_and_key(home, monkeypatch):
    monkeypatch.setenv("EXAMPLE_KEY", "sk-of-the-example")
    with Loopback(says("a summary")) as one, Loopback(says("a title")) as two:
        write(
            home,
            f"model: main\nhermes_nb:\n  base_url: {one.url}\n  auxiliary:\n    model: small\n"
            f"    compression: {{model: sums, base_url: '{one.url}', key_env: EXAMPLE_KEY}}\n"
            f"    titles: {{model: names, base_url: '{two.url}'}}\n    recall: elsewhere\n",
        )
        settings = load_settings()
        main = build_model(settings)
        beside = Auxiliary(settings)
        assert answer(beside.of("compression", main)) == "a summary"
        assert one.exchanges[0].headers["authorization"] == "Bearer sk-of-the-example"
        assert one.bodies[0]["model"] == "sums"
        assert answer(beside.of("titles", main)) == "a title"
        assert "sk-of" not in two.exchanges[0].headers["authorization"]
        assert beside.of("recall", main).name == "elsewhere"
        assert settings.auxiliary["recall"].base_url == one.url, "where the conversation's is"
        assert [beside.of(job, main) for job in ("vision", "reviews", "mixture")] == [None] * 3
        assert beside.of("titles", main) is beside.of("titles", main)


def test_the_one_for_compression_also_condenses_and_names_where_no_other_is_set(home):
    write(home, "auxiliary: {compression: {model: small}}\n")
    found = load_settings().auxiliary
    assert {job: end.model for job, end in found.items()} == dict.fromkeys(
        ("compression", "recall", "titles"), "small"
    )
    write(home, "auxiliary: {compression: {model: m, provider: of-somebody}}\n")
    assert load_settings().auxiliary == {}, "never sent to somebody else's address"
    write(home, "auxiliary: {recall: [small]}\n")
    with pytest.raises(ConfigError, match=r"auxiliary\.recall"):
        load_settings()


def test_the_conversations_model_stands_behind_and_stays_open(home):
    with Loopback(failure(401)) as refusing, Loopback(says("from the main one")) as main_server:
        write(home, f"hermes_nb: {{auxiliary: {{model: small, base_url: '{refusing.url}'}}}}\n")
        settings = load_settings(overrides={"base_url": main_server.url, "model": "main"})
        main = build_model(settings)
        beside = Auxiliary(settings)

        async def story():
            said = [await asked(beside.of("recall", main))]
            await beside.aclose()
            said.append(await asked(main))
            await main.aclose()
            return said

        assert asyncio.run(story()) == ["from the main one"] * 2
        assert len(refusing.exchanges) == 1
        assert len({exchange.connection for exchange in main_server.exchanges}) == 1


def test_what_recall_costs_is_told_apart(home, tmp_path):
    home.mkdir(mode=0o700)
    store = SqliteStore(home / "notebook.db")
    old = store.start(title="penguins")
    store.append(old, Message.user("The penguins live on Dream island."))
    store.append(old, Message.assistant("Noted: Dream island."))
    store.close()
    searching = calls(("session_search", {"query": "penguins island", "summarize": True}))
    with (
        Loopback(says("They live on Dream.")) as recall,
        Loopback(searching, says("On Dream.")) as main,
    ):
        write(home, f"auxiliary: {{recall: {{model: reader, base_url: '{recall.url}'}}}}\n")
        with Hermes("main", base_url=main.url, cwd=tmp_path) as hermes:
            turn = hermes.ask("Where do the penguins live?")
            spent = hermes._opening.session().by_job
    assert turn.text == "On Dream."
    assert len(recall.exchanges) == 1, "it has read the old session"
    told = {e.purpose: e.model for e in turn.events if isinstance(e, UsageReported)}
    assert told["recall and maps"] == "loopback"
    assert ("recall and maps", "loopback") in spent


def test_a_title_is_counted_as_one(home):
    with Loopback(says("Penguins of Dream")) as server:
        config = f"auxiliary: {{titles: {{model: names, base_url: '{server.url}'}}}}\n"
        world = World(home, "Noted.", config=config)
        world.store.rename(world.session.id, "The penguins live on Dream island.")
        world.say("The penguins live on Dream island.")
        world.reviews._thread.settle(20)
        assert world.store.get(world.session.id).title == "Penguins of Dream"
        assert world.session.by_job["titles", "loopback"].requests == 1
        world.close()


@pytest.mark.parametrize("learn", [False, True])
def test_the_session_of_a_script_is_named_too(home, tmp_path, learn):
    with Loopback(says("Penguins of Dream")) as names, Loopback(says("Noted.")) as main:
        write(home, f"auxiliary: {{titles: {{model: names, base_url: '{names.url}'}}}}\n")
        with Hermes("main", base_url=main.url, cwd=tmp_path, learn=learn) as hermes:
            hermes.ask("The penguins live on Dream island.")
            hermes.ask("And the others?")
            spent = hermes._opening.session().by_job
        assert len(names.exchanges) == 1
    with closing(SqliteStore(home / "notebook.db")) as store:
        assert [each.title for each in store.sessions()] == ["Penguins of Dream"]
    assert spent["titles", "loopback"].requests == 1


def test_reviews_go_on_with_the_conversations_model_unless_one_is_named(desk, home):
    noting = calls(
        ("memory", {"action": "add", "target": "user", "content": "Wants short answers."})
    )
    with Loopback(noting, says("Saved.")) as server:
        write(
            home,
            "memory: {nudge_interval: 1}\n"
            f"auxiliary:\n  model: small\n  reviews: {{model: lookback, base_url: '{server.url}'}}",
        )
        desk.plays("Fine.")
        desk.ask("Answer briefly, please.")
        assert desk.agent.reviews.begin(desk.agent.session, "memory")
        desk.agent.reviews.wait(20)
        assert [body["model"] for body in server.bodies] == ["lookback", "lookback"]
        assert len(desk.model.requests) == 1
    write(home, "auxiliary: {model: small}\n")
    assert desk.agent.models.another() == (desk.model, False)


def test_a_figure_is_described_to_a_model_that_takes_none(desk, home, tmp_path):
    (tmp_path / "chart.png").write_bytes(PIXEL)
    with Loopback(says("May is highest.")) as eyes, Loopback(says("It is May.")) as main:
        write(
            home,
            f"hermes_nb: {{model: qwen3-coder, base_url: '{main.url}'}}\n"
            f"auxiliary: {{vision: {{model: eyes, base_url: '{eyes.url}'}}}}\n",
        )
        desk.shell.user_ns["chart"] = str(tmp_path / "chart.png")
        assert desk.ask("Which is highest?", images=("chart",)) == "It is May."
        asked = str(eyes.bodies[0]["messages"])
        assert "image_url" in asked and "Which is highest?" in asked
        assert "May is highest." in str(main.bodies[0]["messages"][-1])
        assert "vision, loopback" in desk("cost")
        assert "May is highest." in desk.agent.last.finished(), "it is folded with the reasoning"


def test_what_is_named_is_listed_and_asked_by_the_doctor(desk, home):
    listing = document({"data": [{"id": "small"}]})
    with Loopback(listing=listing) as one, Loopback(listing=failure(401)) as two:
        write(
            home,
            f"hermes_nb:\n  model: main\n  base_url: {one.url}\n"
            f"  auxiliary: {{model: small, reviews: {{model: looker, base_url: '{two.url}'}}}}\n",
        )
        listed = desk("models")
        for name in ("small", "looker"):
            assert f"<code>{name}</code>" in listed or f"`{name}`" in listed
        told = desk("doctor")
    assert "for compression, recall, titles" in told
    assert "for reviews" in told and len(two.asked) == 1
