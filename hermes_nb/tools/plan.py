"""The tool `todo`, which a model uses to plan a longer task: a list of steps with their states.

It stores nothing: each call contains the whole plan. The user sees the plan in the last call.
Context compression keeps it as one of its facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Toolset
from hermes_nb.tools.schema import tool

State = Literal["done", "now", "open"]
_MARKS: Mapping[str, State] = {"x": "done", "X": "done", ">": "now", " ": "open"}


def steps(arguments: Mapping[str, Json]) -> list[tuple[State, str]]:
    """Return the steps in a call's arguments, with their states. A step without a mark is open."""
    items = arguments.get("items")
    return [_step(str(item)) for item in items] if isinstance(items, list | tuple) else []


def _step(item: str) -> tuple[State, str]:
    text = item.strip()
    match list(text):
        case ["[", mark, "]", *rest] if mark in _MARKS:
            return _MARKS[mark], "".join(rest).strip()
        case _:
            return "open", text


def progress_line(plan: Sequence[tuple[State, str]]) -> str:
    """Return a plan's progress on one line."""
    done = sum(state == "done" for state, _ in plan)
    now = next((text for state, text in plan if state == "now"), "")
    return f"{done} of {len(plan)} done{f', now: {one_line(visible(now), 60)}' if now else ''}"


def plan_tools() -> Toolset:
    """Return the tool `todo`."""

    @tool(
        toolset="plan", describe=lambda given: progress_line(steps(given)) if steps(given) else ""
    )
    def todo(items: list[str]) -> str:
        """Replace the plan of a longer task.

        Args:
            items: all steps; start each with [x] done, [>] in progress or [ ] to do
        """
        return progress_line(steps({"items": items}))

    return Toolset([todo])
