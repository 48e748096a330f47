"""The extension reloaded, agents never closed, 15 times each: no descriptor, no thread is left."""

from __future__ import annotations

import json

import pytest

from tests.faults.stores import finished, run_python

SCRIPT = """
import gc, json, sys, threading
from hermes_nb import Hermes, use_model
from hermes_nb.models.scripted import ScriptedModel
from IPython.core.interactiveshell import InteractiveShell
from tests.faults.processes import descriptors

def reloaded():
    shell = InteractiveShell.instance()
    shell.run_cell("%reload_ext hermes_nb").raise_error()
    use_model(ScriptedModel(["Hello."]))
    shell.run_cell("%%hermes --quiet\\nhello").raise_error()

def unclosed():
    assert Hermes(ScriptedModel(["Hello."])).ask("hello").text == "Hello."

counts = []
for _ in range(16):
    before = set(threading.enumerate())
    globals()[sys.argv[1]]()
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if "hermes" in thread.name:
            thread.join(timeout=60)  # it was told to end
    gc.collect()
    counts.append([descriptors(), threading.active_count()])
print(json.dumps(counts))
"""


@pytest.mark.parametrize("way", ["reloaded", "unclosed"])
def test_80_nothing_is_left(way):
    first, *_, last = json.loads(finished(run_python(SCRIPT, way))[-1])
    assert last == first
