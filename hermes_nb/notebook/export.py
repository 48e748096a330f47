r"""A preprocessor for nbconvert: prompts become quoted text, and commands of ours are left out.

```console
$ jupyter nbconvert --to html \
    --Exporter.preprocessors=hermes_nb.notebook.export.prompts_as_text analysis.ipynb
```
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from contextlib import suppress
from copy import deepcopy

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json
from hermes_nb.notebook.commands.table import command_named
from hermes_nb.notebook.magics import HermesMagics
from hermes_nb.notebook.options import split_options
from hermes_nb.notebook.shell import is_message

_LOADS = re.compile(r"^%(?:re)?load_ext hermes_nb\S*[ \t]*\n?", re.MULTILINE)
_COMMAND = re.compile(r" · <code(?: title=\"[^\"]*\")?>%hermes [^<]*</code>")
"""What ends the line about a turn's changes in a page without buttons."""

Notebook = MutableMapping[str, Json]


def prompts_as_text(notebook: Notebook, resources: Json) -> tuple[Notebook, Json]:
    """Return a copy of a notebook to export, and `resources`, as nbconvert's preprocessors do.

    A cell with a prompt becomes a Markdown cell that quotes it, and a cell with the answer.
    """
    shown = deepcopy(notebook)
    shown["cells"] = [part for cell in shown["cells"] for part in _parts(cell)]
    return shown, resources


def _parts(cell: Notebook) -> list[Notebook]:
    if cell["cell_type"] != "code":
        return [cell]
    source = cell["source"] = _LOADS.sub("", cell["source"])
    outputs = cell["outputs"]
    for output in outputs:
        data = output.get("data") or {}
        if "text/markdown" in data:
            data["text/markdown"] = _COMMAND.sub("", "".join(data["text/markdown"]))
    if not source.strip() and not outputs:
        return []
    if not is_message(source):
        return [cell]
    cell["metadata"]["transient"] = {"remove_source": True}  # nbconvert's own word for it
    if not (prompt := _prompt(source)):
        return [cell]
    quoted = "\n".join(f"> {line}".rstrip() for line in prompt.split("\n"))
    text = deepcopy(cell)
    text.update(cell_type="markdown", metadata={}, source=quoted)
    text.update({"id": f"{cell['id'][:57]}-prompt"} if "id" in cell else {})
    del text["outputs"], text["execution_count"]
    return [text, cell]


def _prompt(source: str) -> str:
    """Return the prompt in a cell, or "" if it contains a command."""
    head, _, body = source.strip().partition("\n")
    line = head.lstrip("%").removeprefix("hermes").strip()
    word = line.partition(" ")[0]
    if not head.startswith("%%") and word and command_named(word):
        return ""
    with suppress(ConfigError):  # the cell fails with that error: show its line as it is
        _, line = split_options(line, HermesMagics.hermes.parser)
    return f"{line}\n{body}".strip()
