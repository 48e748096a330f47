"""Which cells start an agent, by the source that IPython would run."""

from __future__ import annotations

import json

import pytest
from hermes_nb.safety.later import agent_cells, starts_agent

STARTS = [
    "%hermes new",
    "x = 1\n%%hermes --approve all\ngo",
    "get_ipython().run_cell_magic('hermes', '', 'go')",
    'ip.magic("hermes new")',
    "%load_ext hermes_nb",
    "from hermes_nb import Hermes",
    "  hermes config approve all\n",
    ";hermes --approve all go",
    "x = 1\n  ,hermes go",
    "/hermes go",
    "%alias_magic h hermes",
    "%alias_magic --cell -p '--approve all' h hermes",
    "m = get_ipython().run_line_magic\nm('hermes', 'go')",
]
DOES_NOT = [
    "hermes = 1",
    "x = 'hermes'",
    "print('hermes')",
    "f(x, hermes)",
    "a; hermes",
    "# Hermes wrote this\nx = 1",
    "hermes new\nx = 1",
    "",
]


@pytest.mark.parametrize("source", STARTS)
def test_what_starts_an_agent(source):
    assert starts_agent(source)


@pytest.mark.parametrize("source", DOES_NOT)
def test_what_does_not(source):
    assert not starts_agent(source)


@pytest.mark.parametrize("split", [str, list])
@pytest.mark.parametrize(
    "around", [lambda cells: {"cells": cells}, lambda cells: {"worksheets": [{"cells": cells}]}]
)
def test_the_cells_of_a_notebook(split, around):
    source = "%%hermes --approve all\ngo"
    cells = [{"cell_type": "code", "source": split(source)}]
    cells += [{"cell_type": "code", "input": "x = 1"}, {"cell_type": "markdown", "source": source}]
    assert agent_cells(json.dumps(around(cells))) == {source}


@pytest.mark.parametrize("text", ["", "%%hermes", "[" * 100_000, '{"cell_type": "code"}'])
def test_what_is_no_notebook_has_none(text):
    assert agent_cells(text) == frozenset()
