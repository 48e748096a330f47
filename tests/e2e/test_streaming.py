"""An answer grows while it streams, and a stop keeps what there is."""

from __future__ import annotations

import time

from tests.loopback import Reply, chunk, event, stall
from tests.patience import STOPS_WITHIN


def test_partial_text_shows_while_it_streams_and_stays_after_a_stop(open_notebook, model):
    notebook = open_notebook("%%hermes\ntell me a long story")
    pieces = [event(chunk({"content": text})) for text in ("Once upon ", "a **time** ")]
    model.replies[:] = [Reply([*pieces, stall])]
    notebook.kernel(
        f"import os; os.environ['HERMES_NB_BASE_URL'] = {model.url!r}\n%load_ext hermes_nb"
    )
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    notebook.page.wait_for_selector(".jp-RenderedMarkdown >> text=running")
    notebook.shot("streaming")
    began = time.monotonic()
    notebook.command("notebook:interrupt-kernel")
    outputs = notebook.finish(1)
    assert time.monotonic() - began < STOPS_WITHIN
    assert "Once upon a **time**" in outputs[0]["data"]["text/markdown"]
    assert "Stopped" in outputs[0]["data"]["text/markdown"]
