"""The prompts of `%hermes fix` and `%hermes explain`."""

from __future__ import annotations

import pytest
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.notebook.commands.fix import explain_prompt, fix_prompt
from hermes_nb.notebook.document.document import Cell, source_hash
from hermes_nb.notebook.interpolate import interpolate
from hermes_nb.notebook.magics import load


def above(source, type_="code"):
    return Cell(index=1, id="up1", type=type_, source=source, hash=source_hash(source))


def test_a_fix_names_the_cell_its_source_and_its_error(shell, capsys):
    shell.run_cell("a, b = 1, 0\na / b", store_history=True, cell_id="ab12")
    prompt = fix_prompt(shell)
    assert "```python\na, b = 1, 0\na / b\n```" in prompt
    assert "ZeroDivisionError" not in prompt  # it is in the context of the same message
    assert "Change cell ab12 itself with edit_cell, then run it with run_cell" in prompt
    assert len(prompt) < 1200
    assert fix_prompt(shell, "Keep the name b.").endswith("Keep the name b.")


def test_a_fix_works_when_other_cells_ran_since_and_the_id_is_unknown(shell, capsys):
    shell.run_cell("1 / 0", store_history=True, cell_id="ab12")
    shell.run_cell("1")
    prompt = fix_prompt(shell)
    assert "ZeroDivisionError: division by zero" in prompt
    assert "Cell In[1], line 1: 1 / 0" in prompt
    assert "notebook_outline" in prompt


def test_a_fix_that_failed_can_be_asked_for_again(shell, capsys):
    load(shell)
    shell.run_cell("1 / 0", store_history=True)
    for failing in ("%hermes statsu", "%hermes undo x"):
        assert isinstance(shell.run_cell(failing).error_in_exec, HermesError)
        assert "ZeroDivisionError: division by zero" in fix_prompt(shell)
    shell.run_cell("{}['k']")
    shell.run_cell("%hermes statsu")
    assert "KeyError: 'k'" in fix_prompt(shell)


def test_long_cells_backticks_and_secrets(shell, capsys):
    key = "sk-" + "a1" * 20
    shell.InteractiveTB.set_mode("Minimal")  # IPython takes seconds to show a part of a long cell
    shell.run_cell(f"key = '{key}'\ns = '```'\n" + "x = 1\n" * 5000 + "1 / 0")
    prompt = fix_prompt(shell)
    assert "a1a1" not in prompt
    assert "````python" in prompt
    assert len(prompt) < 9_000


def test_nothing_in_the_quotes_is_evaluated(shell, capsys):
    shell.user_ns["word"] = "interpolated"
    shell.run_cell("text = 'a $`word` b'\nraise ValueError('$`print(1/0)` $$`x`')")
    prompt = interpolate(fix_prompt(shell, "Mind $`word`."), shell)
    assert "text = 'a $`word` b'" in prompt
    assert prompt.endswith("Mind interpolated.")
    shell.run_cell("1")
    prompt = interpolate(fix_prompt(shell), shell)
    assert "ValueError: $`print(1/0)` $$`x`\n" in prompt
    prompt = interpolate(explain_prompt(shell, above=above("s = '$`1/0`'")), shell)
    assert "s = '$`1/0`'" in prompt


def test_nothing_failed(shell):
    shell.run_cell("1")
    with pytest.raises(ConfigError, match="no cell has failed") as caught:
        fix_prompt(shell)
    assert "\n" not in str(caught.value)


def test_an_error_is_explained_else_the_cell_above(shell, capsys):
    shell.run_cell("undefined", store_history=True)
    prompt = explain_prompt(shell, above=above("x = 1"))
    assert "Explain the error" in prompt
    assert "```python\nundefined\n```" in prompt
    shell.run_cell("y = 2", store_history=True)
    prompt = explain_prompt(shell, above=above("x = 1"), wish="In French.")
    assert "Explain cell up1" in prompt
    assert "```python\nx = 1\n```" in prompt
    assert prompt.endswith("In French.")
    assert "```markdown" in explain_prompt(shell, above=above("# T", "markdown"))


def test_without_the_notebook_the_last_input_is_the_cell_above(shell):
    with pytest.raises(ConfigError, match="no error and no cell above"):
        explain_prompt(shell)
    history = shell.history_manager.input_hist_raw
    history.extend(["y = 2", "%%hermes\nhello", "%hermes explain"])
    assert "```python\ny = 2\n```" in explain_prompt(shell)


def failing(cell_id):
    error = {"output_type": "error", "ename": "KeyError", "evalue": "'$`k`'"}
    error["traceback"] = ["\x1b[31mCell In[3], line 1\x1b[0m", "KeyError: '$`k`'"]
    return Cell(
        index=0,
        id=cell_id,
        type="code",
        source="d['k']",
        hash=source_hash("d['k']"),
        outputs=[error],
    )


def test_a_named_cell_is_meant_by_the_error_that_it_shows(shell, capsys):
    shell.run_cell("1 / 0", store_history=True, cell_id="later")
    named = failing("ab12")
    for prompt in (fix_prompt(shell, cell=named), explain_prompt(shell, above=named, named=True)):
        asked = interpolate(prompt, shell)
        assert "Cell ab12:" in asked
        assert "KeyError: '$`k`'" in asked
        assert "Cell In[3], line 1\n" in asked
        assert "1 / 0" not in asked
    assert "Change cell ab12 itself" in fix_prompt(shell, cell=named)
    whole = above("x = 1")
    assert "Explain cell up1" in explain_prompt(shell, above=whole, named=True)
    with pytest.raises(ConfigError, match="cell 2 shows no error"):
        fix_prompt(shell, cell=whole)
