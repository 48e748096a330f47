"""A turn asks for the notebook's page and continues; a page that it knows is waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels import kernel
from tests.loopback import Exchange, Loopback, Reply, calls, says
from tests.notebook.bridge.test_rejoining import Page

pytestmark = pytest.mark.kernel

FOREVER = "import hermes_nb.notebook.frontend as f; f.QUICK = f.SILENT = 3600"
"""With this, a turn that waits for a silent page does not end."""
CELLS = [
    {"id": name, "index": number, "type": "code", "source": source, "hash": "1", "outputs": []}
    for number, (name, source) in enumerate([("cell-0", "oak = 1"), ("cell-1", "%%hermes\nhi")])
]


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback(says("done")) as running:
        yield running


@pytest.fixture
def page(server: Loopback, tmp_path: Path, home: Path) -> Iterator[Page]:
    """Yield a page that has the notebook and says nothing, and whose kernel would wait for it."""
    env = {**os.environ, "HERMES_HOME": str(home), "IPYTHONDIR": str(tmp_path / "ipython")}
    env |= {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "loopback-model"}
    with kernel(env, cwd=str(tmp_path)) as running:
        running.run("%load_ext hermes_nb")
        running.run(FOREVER)
        made = Page(running)
        made.silent, made.answers = True, {"list": CELLS, "ask": {"answer": "once"}}
        yield made


def turn(page: Page, code: str = "%%hermes\nhi") -> None:
    page.run(code)
    page.until(lambda: not page.running)


def test_a_turn_continues_without_a_page_and_has_its_outline_once_it_says_hello(
    page: Page, server: Loopback
) -> None:
    turn(page)
    turn(page)
    assert page.comms  # it was asked
    page.silent = False
    page.hello(page.comms[-1])
    turn(page)
    sent = [json.dumps(each["messages"][-1]) for each in server.bodies]
    assert ["oak = 1" in each for each in sent] == [False, False, True]


def test_an_edit_waits_for_a_page_that_the_turn_did_not_wait_for(
    page: Page, server: Loopback
) -> None:
    def loaded(exchange: Exchange) -> None:
        page.silent = False
        page.hello(page.comms[-1])

    edit = calls(("insert_cell", {"source": "elm = 2"}))
    server.replies[:] = [Reply([*edit.steps, loaded]), says("done")]
    page.answers["insert"] = {**CELLS[0], "id": "new", "source": "elm = 2"}
    turn(page)
    assert "insert" in page.asked
    assert "oak = 1" not in json.dumps(server.bodies[0])
    assert "the open notebook" in server.bodies[1]["messages"][-1]["content"]


def test_a_page_that_has_answered_is_waited_for_in_the_next_turn(
    page: Page, server: Loopback
) -> None:
    page.silent = False
    turn(page)
    page.silent = True
    page.answers["list"] = [{**CELLS[0], "source": "oak = 2", "hash": "2"}, CELLS[1]]
    page.run("%%hermes\nhi")
    before = len(page.comms)
    page.until(lambda: len(page.comms) > before)
    assert page.running and len(server.exchanges) == 1
    page.silent = False
    page.hello(page.comms[-1])
    page.until(lambda: not page.running)
    assert "oak = 2" in json.dumps(server.bodies[1]["messages"][-1])
