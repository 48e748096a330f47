"""The small model reads the block that a notebook adds to the user's message."""

from __future__ import annotations

from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Toolset
from hermes_nb.extras.local.prompting import CONTEXT, Constrained, described
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.notebook.user_message import turn_context, variable_line
from hypothesis import given

from tests.notebook.conftest import shell
from tests.notebook.test_context import ERROR, LINE, TABLE, variables

__all__ = ["shell"]


@given(variables)
def test_a_variable_has_the_form_that_the_small_model_knows(variable):
    assert variable_line(variable) == described(variable)


def test_the_small_model_reads_the_block(shell):
    text = turn_context(
        notebook="a",
        variables=[TABLE],
        error=ERROR,
        cells="Cells above this one (c):\n- not a variable",
    )
    assert text.startswith(CONTEXT)
    tools = kernel_tools(shell)
    asked = Request(messages=(Message.user(f"How many?\n{text}"),), tools=Toolset(tools))
    assert list(Constrained().messages(asked))[-1].text == f"How many?\n{LINE}"
