from __future__ import annotations

from hermes_nb.core.tools import Tool
from hermes_nb.models.scripted import call

from tests.conftest import take_turn


def test_a_call_knows_which_run_beside_it_in_call_order(make_agent):
    seen = {}

    def note(context, arguments):
        seen[arguments["n"]] = [each.arguments["n"] for each in context.beside]

    def make(name, **options):
        return Tool(name=name, description=name, parameters={"type": "object"}, run=note, **options)

    tools = [make("note"), make("alone", exclusive=True)]
    batch = [call("note", n=0), call("note", n=1), call("alone", n=2), call("note", n=3)]
    take_turn(make_agent(batch, "done", tools=tools))
    assert seen == {0: [0, 1], 1: [0, 1], 2: [2], 3: [3]}
