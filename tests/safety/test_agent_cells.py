"""Which cells start an agent, by the source that IPython would run."""

from __future__ import annotations

import json

import nbformat
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
    ">>> hermes --approve all go",
    "In [1]: hermes --approve all go",
    "[ins] In [12]: hermes go",
    "   ...: hermes go",
    "hermes--approve all go",
    "hermes!go",
    'hermes"go"',
    "hermes: go",
    "hermes\u3000--approve all go",
    "%%capture\nhermes --approve all go",
    "%%capture out --no-stderr\n\n  hermes go\n",
    "%%time\n%%capture\nhermes go",
    "%time hermes go",
    "x = 1\ny['%'] = %time hermes go",
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
    "hermes.ask('x')",
    "hermes, other = 1, 2",
    "hermes == 1",
    "# hermes wrote this",
    "'hermes' in names",
    "%%capture\nhermes = 1",
    "%%capture\nhermes.ask('x')",
    "%timeit f(hermes)",
    "%time hermes",
    "%matplotlib inline\nhermes = 1",
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


OLDER = {
    1: {"code": "%%hermes --approve all\ngo"},
    3: {"input": "%%hermes --approve all\ngo", "source": "1", "language": "python"},
}


@pytest.mark.parametrize("version", OLDER)
def test_the_cells_of_older_formats_are_those_that_jupyter_reads(version):
    cell = {"cell_type": "code", "outputs": [], "prompt_number": 1, "metadata": {}}
    cells = [cell | OLDER[version]]
    sheets = {"worksheets": [{"cells": cells}], "metadata": {"name": ""}}
    document = {"nbformat": version, "nbformat_minor": 0, "cells": cells} | sheets
    text = json.dumps(document if version == 1 else {**document, "cells": []})
    read = nbformat.reads(text, as_version=4)
    assert [each.source for each in read.cells] == ["%%hermes --approve all\ngo"]
    assert "%%hermes --approve all\ngo" in agent_cells(text)


@pytest.mark.parametrize("text", ["", "%%hermes", "[" * 100_000, '{"cell_type": "code"}'])
def test_what_is_no_notebook_has_none(text):
    assert agent_cells(text) == frozenset()
