from __future__ import annotations

import asyncio

from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import ToolContext
from hermes_nb.tools.plan import plan_tools, steps

PLAN = {"items": ["[x] read the exports", "[>] one form", "[ ] plot", "no mark"]}


def test_a_plan_is_all_in_its_call():
    todo = plan_tools().get("todo")
    assert todo.check(PLAN) == "" and todo.check({"items": "read"})
    context = ToolContext(call=ToolCall(id="1", name="todo", arguments=PLAN), emit=lambda _: None)
    assert asyncio.run(todo.run(context, PLAN)) == "1 of 4 done, now: one form"
    assert todo.describe(PLAN) == "1 of 4 done, now: one form"
    assert [todo.describe({"items": none}) for none in ([], None, "read, plot")] == [""] * 3
    assert [state for state, _ in steps(PLAN)] == ["done", "now", "open", "open"]
    assert steps({"items": ["[]", "[x]", ""]}) == [("open", "[]"), ("done", ""), ("open", "")]
