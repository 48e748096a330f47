"""Where nothing can wait for a turn its cell fails with one line, and nothing is sent."""

from __future__ import annotations

import os

import pytest

from tests.kernels import kernel as started
from tests.loopback import Loopback, stream, text_chunks

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

NOWHERE = {
    "capture": "%%capture\n%hermes hello",
    "capture into": "%%capture out\nx = 1\n%hermes status",
    "capture cell": "%%capture\n%%hermes\nhello",
    "time": "%%time\n%hermes hello",
    "time line": "%time %hermes hello",
    "timeit": "%timeit -n1 -r1 %hermes hello",
    "function": "def ask():\n    %hermes hello\nask()",
    "call": "def ask():\n    get_ipython().run_line_magic('hermes', 'hello')\nask()",
    "run_cell": "def ask():\n    get_ipython().run_cell('%hermes hello')\nask()",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with Loopback(stream(text_chunks("Heard."))) as model:
        env = {**os.environ, "HERMES_NB_BASE_URL": model.url, "HERMES_NB_MODEL": "some-model"}
        with started(env | {"HERMES_HOME": str(home)}, cwd=str(home)) as kernel:
            assert kernel.run("%load_ext hermes_nb").status == "ok"
            yield kernel, model


@pytest.mark.parametrize("cell", NOWHERE.values(), ids=NOWHERE)
def test_a_cell_that_cannot_wait_fails_and_sends_nothing(here, cell):
    kernel, model = here
    before = len(model.exchanges)
    found = kernel.run(cell)
    assert found.status == "error" and len(model.exchanges) == before
    assert len(found.error["traceback"]) == 1 and "nothing was sent" in found.error["traceback"][0]
    assert "Instead, " in found.error["evalue"]


@pytest.mark.parametrize(
    "cell",
    [
        "for each in range(1):\n    %hermes hello",
        "async def ask():\n    %hermes hello\nawait ask()",
        "%%hermes --into said --quiet\nhello",
        "from hermes_nb import Hermes\ndef ask():\n    return Hermes().ask('hello').text\nask()",
    ],
)
def test_a_cell_that_can_wait_sends_it(here, cell):
    kernel, model = here
    before = len(model.exchanges)
    found = kernel.run(cell)
    assert found.status == "ok", found
    assert len(model.exchanges) > before
