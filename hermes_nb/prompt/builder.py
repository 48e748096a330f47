"""The system prompt: assembled once a session, stored with it, and sent byte for byte ever after.

Layers are joined by blank lines, and an empty one leaves nothing behind. White space is normalised
here, once, so that nobody has a reason to touch the text later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hermes_nb.core.tools import Toolset

IDENTITY = (
    "You are Hermes, an agent that works inside a Jupyter kernel next to the person whose notebook "
    "it is. Find out before you claim: look at files, variables and results with your tools, then "
    "answer briefly and concretely, with the numbers you saw. Say so when you do not know, when "
    "something failed, or when an answer rests on an assumption. Change only what was asked for."
)
ENFORCEMENT = (
    "When a step needs a tool, call it in this very reply instead of announcing it. "
    "Go on until the task is done, then give the result."
)
ENFORCED_FAMILIES = ("gpt", "codex", "gemini", "gemma", "grok", "glm", "qwen", "deepseek")
"""Model-name parts of families that tend to announce calls instead of making them."""
KERNEL_HINT = (
    "The kernel is live: run_python works on the user's own variables, and what it changes stays "
    "changed."
)
NOTEBOOK_HINT = (
    "Your answer is shown in a notebook cell: Markdown, tables and LaTeX render. "
    "Code that the user should keep belongs in a cell of its own, not in a long answer."
)
TERMINAL_HINT = (
    "Your answer is printed in a terminal: plain text, short lines, no tables wider than it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A named piece of the prompt."""

    name: str
    text: str


def layers(
    *, tools: Toolset, model: str, session_id: str, date: str, platform: str = "notebook"
) -> list[Layer]:
    """Return the layers that have something to say, in order.

    `date` is an ISO date, `platform` is `notebook` or `terminal`.
    """
    hints = [NOTEBOOK_HINT if platform == "notebook" else TERMINAL_HINT]
    if "run_python" in tools:
        hints.append(KERNEL_HINT)
    enforced = len(tools) and any(family in model.lower() for family in ENFORCED_FAMILIES)
    found = [
        Layer(name="identity", text=IDENTITY),
        Layer(name="guidance", text=ENFORCEMENT if enforced else ""),
        Layer(name="date and session", text=f"Date: {date}. Session: {session_id}."),
        Layer(name="platform", text=" ".join(hints)),
    ]
    return [layer for layer in found if layer.text.strip()]


def assemble(found: Iterable[Layer]) -> str:
    """Return the prompt that the layers make, its white space normalised."""
    return "\n\n".join(_normalised(layer.text) for layer in found)


def _normalised(text: str) -> str:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
