"""Choosing the model that is in use does nothing, and models at one address share connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_nb.notebook.interrupt import TurnFailed
from hermes_nb.notebook.turn import TurnOptions

from tests.loopback import Loopback, failure, says


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    with Loopback(says("done")) as running:
        monkeypatch.setenv("HERMES_NB_BASE_URL", running.url)
        monkeypatch.setenv("HERMES_NB_MODEL", "oak")
        yield running


def asked(desk: Any, *models: str) -> list[Any]:
    """Run a turn with each model in one event loop, and return the model objects; "" for none."""

    async def turns() -> list[Any]:
        found = []
        for name in models:
            await desk.agent.ask("hi", TurnOptions(model=name))
            found.append(desk.agent.models.main)
        return found

    return asyncio.run(turns())


def connections(server: Loopback) -> int:
    """Return how many connections the requests of turns used; questions for models have theirs."""
    return len({each.connection for each in server.exchanges})


def test_the_model_in_use_stays_the_same_object_with_one_connection_and_one_engine(
    desk: Any, server: Loopback
) -> None:
    first, *others = asked(desk, "", "oak", "oak", "")
    assert all(each is first for each in others)
    assert connections(server) == 1
    spec, engine = desk.agent.spec(desk.agent.settings()), desk.agent.session.agent.engine
    desk("model oak")
    assert desk.agent.models.main is first
    assert desk.agent.spec(desk.agent.settings()).tools is spec.tools
    assert desk.agent.session.agent.engine is engine


def test_models_that_alternate_are_kept_and_share_one_connection(
    desk: Any, server: Loopback
) -> None:
    oak, elm, oak_again, elm_again = asked(desk, "oak", "elm", "oak", "elm")
    assert (oak, elm) == (oak_again, elm_again) and oak is not elm
    assert [each["model"] for each in server.bodies] == ["oak", "elm", "oak", "elm"]
    assert connections(server) == 1
    assert len(server.bodies[-1]["messages"]) == 8  # the conversation continued


def test_other_settings_make_another_model(desk: Any, server: Loopback, home: Path) -> None:
    (first,) = asked(desk, "oak")
    home.mkdir(exist_ok=True)
    options = "hermes_nb: {model_options: {oak: {temperature: 0.5}}}"
    (home / "config.yaml").write_text(options, encoding="utf-8")
    (second,) = asked(desk, "oak")
    assert second is not first
    assert server.bodies[-1]["temperature"] == 0.5


def test_a_key_that_failed_is_not_used_again(
    desk: Any, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(desk, "elm", "oak")
    server.replies[:] = [says("done"), says("done"), failure(401), says("done")]
    with pytest.raises(TurnFailed):
        asked(desk, "oak")
    monkeypatch.setenv("HERMES_NB_API_KEY", "another")
    asked(desk, "elm")
    assert server.exchanges[-1].headers["authorization"] == "Bearer another"


def test_a_model_object_gives_way_to_a_named_model(desk: Any, server: Loopback) -> None:
    asked(desk, "oak")
    desk.plays("scripted")
    assert asked(desk, "") == [desk.model]
    assert asked(desk, "oak") != [desk.model]
    assert server.bodies[-1]["model"] == "oak"


def test_many_models_are_not_all_kept(desk: Any, server: Loopback) -> None:
    names = [f"model-{number}" for number in range(12)]
    first, *_ = asked(desk, *names)
    assert asked(desk, names[0])[0] is not first
    assert len(server.exchanges) == 13
