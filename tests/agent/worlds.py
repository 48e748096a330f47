"""A home, a process in it with one session, and the reviews of that."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from hermes_nb.agent.learning.reviews import Reviews
from hermes_nb.agent.runtime import Runtime
from hermes_nb.agent.session.session import Identity, Session
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.safety.guard import Guard


class World:
    """A process; `told` are the lines that its user was told."""

    def __init__(self, home, *steps, config=""):
        home.mkdir(mode=0o700, exist_ok=True)
        if config:
            (home / "config.yaml").write_text(config)
        self.home, self.told = home, []
        settings = load_settings(home=home)
        self.store = open_store(settings, print)
        self.model = ScriptedModel(steps)
        self.runtime = Runtime(
            settings,
            root=home,
            store=self.store,
            guard=Guard("all"),
            approver=None,
            tell=self.told.append,
        )
        self.session = Session.start(
            store=self.store,
            spec=self.runtime.spec(self.model),
            identity=Identity(notebook="/work/n.ipynb"),
            warn=print,
        )
        self.reviews = Reviews(self.runtime, model=lambda: (self.model, False))
        self.known, self.approvals = self.runtime.knowledge, self.runtime.approvals
        self.memory, self.library = self.known.memory, self.known.library

    def say(self, *prompts):
        """Take turns, each with what may follow it."""

        async def turn(prompt):
            self.reviews.watch(self.session)
            async with aclosing(self.session.turn(prompt)) as events:
                async for _ in events:
                    pass

        for prompt in prompts:
            asyncio.run(turn(prompt))
            if self.reviews.after_turn(self.session):
                self.reviews.wait(20)

    def review(self, *steps):
        """Look back with a model that plays these steps; return what the tools answered."""
        start = len(self.model.requests)
        self.model.steps += [*steps, "Nothing more."]
        assert self.reviews.begin(self.session, "both")
        self.reviews.wait(20)
        assert len(self.model.requests) > start
        return results(self.model.requests[-1])

    def close(self):
        self.reviews.close()
        self.store.close()


def results(request):
    """Return what the tools of a request answered."""
    return [message.text for message in request.messages if message.role == "tool"]
