"""A turn next to the cells sleeps until a cell that the user has started has ended."""

from __future__ import annotations

SETUP = """
%load_ext hermes_nb
import time
from hermes_nb import use_model
from hermes_nb.models.scripted import ScriptedModel, call
wait = call('wait_for', cell='{train}')
model = ScriptedModel([call('notebook_outline'), wait, 'It has trained.'], delay=0.5)
use_model(model)
"""


def test_a_turn_waits_for_running_and_queued_cells(open_notebook):
    train = "for i in range(3):\n    time.sleep(1); print('epoch', i)\nprint('trained')"
    first = "time.sleep(2); print('first')"
    notebook = open_notebook("%%hermes --background --approve all\nLook", first, train)
    ids = notebook.evaluate("m.cells.map(c => c.id)")
    notebook.kernel(SETUP.format(train=ids[-1]))
    for number in (1, 2, 3):
        notebook.start(number)
    notebook.page.wait_for_function(
        """() => {
          const outputs = window.jupyterapp.shell.currentWidget.content.model.cells
            .get(1).sharedModel.getOutputs();
          return JSON.stringify(outputs).includes('It has trained.');
        }""",
        timeout=60_000,
    )
    told = notebook.kernel("print(len(model.requests), model.requests[-1].messages[-1].text)")
    assert told.startswith("3 ")  # none while it slept
    assert "has run; waited" in told
    assert "epoch 2\ntrained" in told
