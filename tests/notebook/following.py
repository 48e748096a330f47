"""An agent that follows a shipped skill to the letter, on a real notebook and a real shell.

Its script is a generator: what it yields is the next step, what it gets back is the last result.
Commands and code come from the text that `skill_view` gave it, and a step that uses a tool which
the text does not name there is no step of the skill.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.events import TurnEnded
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import ToolCall
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.cell_tools import notebook_tools
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.skills.discovery import Root
from hermes_nb.skills.library import Library
from hermes_nb.tools.files import files
from hermes_nb.tools.skills import skills

from tests.conftest import take_turn
from tests.notebook.document.test_file import notebook, valid, written

ROOT = Path(__file__).parents[2]
Steps = Generator["ToolCall | str", str, None]
_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A part of a skill's text, under one heading."""

    text: str
    folder: str

    def does(self, tool: str, /, **arguments: object) -> ToolCall:
        """Return a call that this part of the text asks for."""
        assert re.search(rf"`{tool}\b", self.text), f"no `{tool}` in:\n{self.text}"
        return call(tool, **arguments)

    def code(self, index: int = 0, /, **names: str) -> str:
        """Return a code block with the user's names in the place of the text's."""
        block = _BLOCK.findall(self.text)[index]
        for name, value in {"FOLDER": self.folder, **names}.items():
            found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", block)
            assert found or name == "FOLDER", f"no {name} in:\n{block}"
            block = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", lambda _, v=value: v, block)
        return block

    def runs(self, index: int = 0, /, **names: str) -> ToolCall:
        """Return the call that runs a code block of the text in the kernel."""
        return self.does("run_python", code=self.code(index, **names))

    def says(self, *passages: str) -> None:
        """Fail unless the text has these passages, which a step relies on."""
        for passage in passages:
            assert passage in self.text, f"no {passage!r} in:\n{self.text}"


class Skill:
    """What `skill_view` answered, taken apart."""

    def __init__(self, view: str) -> None:
        head, _, body = view.partition("\n\n")
        self.folder = re.match(r"\[skill \S+ SKILL.md; folder (.+)\]", head)[1]
        opening, *parts = re.split(r"(?m)^## ", body)
        self.opening = Section(opening, self.folder)
        self.sections = {part.split("\n", 1)[0]: Section(part, self.folder) for part in parts}

    def step(self, number: int) -> Section:
        """Return a numbered part; they have to be there without gaps."""
        numbered = [title for title in self.sections if title[0].isdigit()]
        assert [int(title.split(".")[0]) for title in numbered] == list(range(1, len(numbered) + 1))
        return self.sections[numbered[number - 1]]


class Following(ScriptedModel):
    """Plays a story that looks at what each step gave."""

    def __init__(self, story: Steps) -> None:
        super().__init__([])
        self._story = story
        self._begun = False

    async def stream(self, request):
        result = request.messages[-1].text if self._begun else None
        try:
            step = self._story.send(result)
        except StopIteration:
            step = "Done."
        self._begun = True
        self.steps.append(step)
        async with aclosing(super().stream(request)) as items:
            async for item in items:
                yield item


class World:
    """A working directory with a notebook, the shell of its kernel, and the agent's tools."""

    def __init__(self, shell, root: Path) -> None:
        self.shell, self.root = shell, root
        self.path = root / "nb.ipynb"
        shipped = Library([Root(ROOT / "skills", "shipped")])

        async def document(_place):
            return FileDocument(self.path)

        self.tools = kernel_tools(shell) + notebook_tools(shell, document, root=root)
        self.tools += files(root) + skills(shipped)
        shutil.copy(ROOT / "notebooks/data/penguins.csv", root / "penguins.csv")

    def has(self, *cells: dict) -> None:
        """Write the notebook."""
        written(self.path, notebook(*cells))

    def follow(self, name: str, story: Callable[[Skill], Steps]) -> list[str]:
        """Let an agent load a skill and follow it; return what its calls gave."""

        def steps() -> Steps:
            view = yield call("skill_view", name=name)
            yield from story(Skill(view))

        model = Following(steps())
        agent = Agent(model, self.tools, max_requests=80)
        ending = take_turn(agent, "Follow the skill.")[-1]
        assert ending == TurnEnded("answered"), ending
        return [message.text for message in agent.messages if message.role == "tool"]

    @property
    def cells(self) -> list[dict]:
        """The notebook's cells as they are in the file, which has to be valid."""
        return valid(self.path)["cells"]

    @property
    def sources(self) -> list[str]:
        return ["".join(cell["source"]) for cell in self.cells]

    def shown(self, cell: dict) -> str:
        """Return a cell's outputs as JSON."""
        return json.dumps(cell.get("outputs", []))

    def ids(self) -> list[str]:
        """Return the ids of the code cells, in order."""
        return [cell["id"] for cell in self.cells if cell["cell_type"] == "code"]

    def __getitem__(self, name: str):
        return self.shell.user_ns[name]
