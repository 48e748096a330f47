"""An exported notebook shows prompts as text, and nothing that only the notebook needs."""

from __future__ import annotations

import nbformat
import pytest
from hermes_nb.notebook.export import prompts_as_text
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from traitlets.config import Config

ID = "20261127-163043-51ee90"
ANSWER = (
    "July is **best**.\n\n"
    f'<details><summary>clean.csv added · <code title="turn 3 of {ID}">%hermes undo 3</code> · '
    "<code>%hermes memory undo</code></summary>\n\n```diff\n+ a\n```\n\n</details>\n\n"
    "<details><summary>1 tool call</summary>\n\n```text\nrows\n```\n\n</details>\n\n"
    "<sub>✓ 2.0 s · some-model</sub>"
)


def shown(text):
    return new_output("display_data", {"text/markdown": text, "text/plain": "July"})


@pytest.fixture
def notebook():
    return new_notebook(
        cells=[
            new_code_cell("%load_ext hermes_nb", outputs=[]),
            new_markdown_cell("# Sales"),
            new_code_cell("%load_ext hermes_nb\nrows = 3"),
            new_code_cell(
                '%%hermes --approve all --system "Be brief."\nWhich *month*?\n\n- of 2024',
                outputs=[shown(ANSWER)],
            ),
            new_code_cell("%hermes --effort low Plot it -- well", outputs=[shown("Plotted.")]),
            new_code_cell("%hermes undo", outputs=[shown("**Turn 3** is undone.")]),
            new_code_cell("%hermes fix", outputs=[shown("Repaired.")]),
            new_code_cell("%%hermes --nonsense\nStill shown"),
        ]
    )


def export(kind, notebook):
    preprocessors = ["hermes_nb.notebook.export.prompts_as_text"]
    text, _ = kind(config=Config(Exporter={"preprocessors": preprocessors})).from_notebook_node(
        notebook
    )
    return text


def test_prompts_are_quotations_and_answers_keep_their_folds(notebook):
    before = nbformat.writes(notebook)
    html = export(HTMLExporter, notebook)
    assert nbformat.writes(notebook) == before
    body = html[html.index("<body") :]
    assert "<blockquote>\n<p>Which <em>month</em>?</p>\n<ul>\n<li>of 2024</li>" in body
    assert "July is <strong>best</strong>" in body
    assert "<details><summary>clean.csv added</summary>" in body
    assert "<summary>1 tool call</summary>" in body
    assert body.count("<blockquote>") == 3
    for hidden in ("%hermes", "%%", "load_ext", ID, "--approve", "Be brief", "--effort"):
        assert hidden not in body
    for said in ("Plot it -- well", "is undone", "Repaired.", "Still shown", "rows"):
        assert said in body


def test_markdown_has_the_prompts_and_the_answers(notebook):
    text = export(MarkdownExporter, notebook)
    assert "> Which *month*?\n>\n> - of 2024" in text
    assert "July is **best**" in text
    assert "%hermes" not in text


def test_cells_of_others_stay_as_they_are():
    cells = [new_code_cell("print('%hermes')"), new_markdown_cell("`%hermes undo`")]
    notebook = new_notebook(cells=cells)
    found, resources = prompts_as_text(notebook, {"a": 1})
    assert (found, resources) == (notebook, {"a": 1})
