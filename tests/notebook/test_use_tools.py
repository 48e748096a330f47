"""Tools that the user hands over in a notebook."""

from __future__ import annotations

import pytest
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.magics import load, use_model, use_tools
from hermes_nb.tools.schema import tool


@tool
def weigh(name: str) -> str:
    """Weigh something."""
    return f"{name} weighs 4.2 kg"


@pytest.mark.new_prefix
def test_they_are_called_replaced_and_keep_the_conversation(shell, home):
    load(shell)
    model = ScriptedModel(
        ["Hello.", call("weigh", name="it"), "4.2 kg.", call("weigh", name="it"), "Nothing."]
    )
    use_model(model)
    shell.run_cell("%hermes hello")
    shell.run_cell("from tests.notebook.test_use_tools import use_tools, weigh\nuse_tools(weigh)")
    shell.run_cell("%hermes how heavy is it")
    assert model.requests[2].messages[-1].text == "it weighs 4.2 kg"
    assert any(message.text == "Hello." for message in model.requests[1].messages)

    @tool
    def weigh(name: str) -> str:
        """Weigh something else."""
        return "nothing at all"

    use_tools(weigh)
    shell.run_cell("%hermes --tools mine and now")
    assert model.requests[4].messages[-1].text == "nothing at all"
    assert [each.name for each in model.requests[4].tools] == ["weigh"]


@pytest.mark.new_prefix
def test_a_plain_function_is_made_a_tool_and_what_is_none_is_refused(shell, home):
    load(shell)

    def height(name: str, unit: str = "m") -> str:
        """Measure something."""
        return f"3 {unit}"

    model = ScriptedModel([call("height", name="it", unit="ft"), "3 ft."])
    use_model(model)
    use_tools(height)
    shell.run_cell("%hermes how high is it")
    assert model.requests[1].messages[-1].text == "3 ft"
    with pytest.raises(TypeError):
        use_tools(7)
