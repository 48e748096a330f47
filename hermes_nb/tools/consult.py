"""Toolsets for asking someone: `clarify` asks the user, `vision` a model that reads images.

Both are off unless the configuration or a turn enables them.
"""

from __future__ import annotations

import base64
from pathlib import Path

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Image
from hermes_nb.core.protocols import Approver
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Question, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.tools.asking import put_question
from hermes_nb.tools.encodings import SAMPLE, kind_of
from hermes_nb.tools.schema import tool
from hermes_nb.tools.workspace import Workspace, open_regular, size_text

MOST_CHOICES = 6
NOBODY = (
    "No one is available to answer. Decide with what you know, and state your "
    "assumptions at the end."
)
UNANSWERED = (
    "The user chose not to answer. Continue without the answer, or leave the question open."
)
MOST_BYTES = 5_000_000
"""Maximum size of an image in bytes; providers refuse larger ones."""
KINDS = {"PNG image": "image/png", "JPEG image": "image/jpeg", "GIF image": "image/gif"}


def clarify_tools(approver: Approver) -> Toolset:
    """Return the tool that asks the user a question."""

    async def clarify(
        context: ToolContext,
        question: str,
        choices: list[str] | None = None,
    ) -> ToolOutput:
        """Ask the user what only they can decide, and wait; not what can be found out.

        Args:
            choices: likely answers, short; the user may also write another one
        """
        offered = tuple(dict.fromkeys(one_line(each, 80) for each in choices or () if each.strip()))
        if not question.strip() or len(offered) > MOST_CHOICES:
            raise ToolError(f"give a question and at most {MOST_CHOICES} choices")
        asked = Question(why="Hermes has a question", shown=question, choices=offered)
        given = await put_question(made, context, asked, approver)
        if given.answer == "deny":
            return ToolOutput(NOBODY if given.reason else UNANSWERED, origin="ours")
        picked = given.reason in offered
        return ToolOutput(f"The user: {given.reason}", origin="ours" if picked else "user")

    made: Tool = tool(toolset="clarify", exclusive=True, describe=_question)(clarify)
    return Toolset([made])


def _question(arguments: object) -> str:
    return str(arguments["question"]) if isinstance(arguments, dict) else ""


def vision_tools(root: Path) -> Toolset:
    """Return the tool that views an image in the working directory."""
    space = Workspace(root=root)

    @tool(toolset="vision", paths=("path",), root=root)
    def view_image(path: str, question: str = "") -> ToolOutput:
        """Look at a picture: a PNG, JPEG or GIF file.

        Args:
            question: what to look for
        """
        target = space.resolve(path)
        with space.explained(target), open_regular(target) as file:
            data = file.read(MOST_BYTES + 1)
        kind = kind_of(target, data[:SAMPLE])
        if kind not in KINDS or len(data) > MOST_BYTES:
            raise ToolError(
                f"{space.shown(target)!r} is {kind}, {size_text(len(data))} or more; the "
                f"tool reads PNG, JPEG and GIF images of at most {size_text(MOST_BYTES)}. "
                "Convert it with Python"
            )
        picture = Image(base64.b64encode(data).decode("ascii"), KINDS[kind])
        wanted = f". Asked about it: {one_line(question, 400)}" if question else ""
        shown = f"{space.shown(target)}, {kind}, {size_text(len(data))}{wanted}"
        return ToolOutput(shown, images=(picture,))

    return Toolset([view_image])
