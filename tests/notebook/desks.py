"""An agent as tests use it: prompts and commands, as if they were typed into cells."""

from __future__ import annotations

import asyncio

from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.notebook.commands.table import find, perform
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.turn import TurnOptions


class Desk:
    """An agent of a shell, and what it was told to say."""

    def __init__(self, shell):
        self.said = []
        self.shell = shell
        self.agent = KernelAgent(shell, say=self.said.append)

    def plays(self, *steps, **options):
        self.model = ScriptedModel(steps, **options)
        self.agent.use(self.model)
        return self

    def ask(self, prompt="hi", **options):
        return asyncio.run(self.agent.ask(prompt, TurnOptions(**options)))

    def __call__(self, line):
        command, words = find(line)
        return asyncio.run(perform(command, self.agent, words))
