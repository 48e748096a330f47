"""The models and tools that a kernel is using.

Models are built on first use and replaced between turns. Models that the settings previously named
are kept for a while, with their connections and serialised messages; others are closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes_nb.agent.models import Auxiliary, build_model, check_given, for_reviews
from hermes_nb.agent.session.session import SessionSpec
from hermes_nb.agent.settings.config import BudgetSettings, Settings
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Toolset
from hermes_nb.models.cassette import Deck
from hermes_nb.models.installed import EMBEDDED
from hermes_nb.models.profiles import is_loopback, profile_for, seeing, traits_named, traits_of
from hermes_nb.notebook.approval import ask_user, offer_servers, prepare
from hermes_nb.notebook.kernel_settings import KernelSettings
from hermes_nb.notebook.shell import Shell, can_ask
from hermes_nb.notebook.variables import variables_of
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from hermes_nb.models.servers import ServerIdentity
    from hermes_nb.notebook.attachments import Attachment


MOST_KEPT = 4
"""Maximum number of models that stay open in addition to the current one."""


class ToolsInUse:
    """The tools that the user chose for subsequent turns; () for the default ones."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()

    def choose(self, spec: SessionSpec, names: str) -> Toolset:
        """Use only these tools or toolsets (comma-separated; "" or "all" for the default ones)."""
        wanted = _listed(names)
        wanted = () if wanted == ("all",) else wanted
        chosen = spec.choose(wanted)
        self._names = wanted
        return chosen

    def chosen(self, spec: SessionSpec, names: str = "") -> Toolset:
        """Return the tools for a turn with `--tools NAMES`; "" means those chosen before."""
        wanted = _listed(names) or self._names
        return spec.choose(() if wanted == ("all",) else wanted)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


class ModelsInUse:
    """The conversation's model and the auxiliary ones, from the settings or the user."""

    def __init__(self, shell: Shell, settings: KernelSettings, deck: Deck) -> None:
        self._shell = shell
        self._settings = settings
        self._deck = deck
        self._model: ChatModel | None = None
        self._made: list[tuple[Settings, ChatModel]] = []  # newest last
        self._given = False
        self._ready: ChatModel | None = None
        self._auxiliary: Auxiliary | None = None
        self._retired: list[ChatModel | Auxiliary] = []
        self._looked = False
        self._declined: set[ServerIdentity] = set()

    @property
    def name(self) -> str:
        """The current model's name, or "" before the first turn."""
        return self._model.name if self._model else ""

    @property
    def main(self) -> ChatModel:
        """The conversation's model; raise `ConfigError` if none is configured."""
        if self._model is None:
            self._model = self._named(self._settings.now())
        return self._model

    @property
    def auxiliary(self) -> Auxiliary:
        """The models for background tasks."""
        if self._auxiliary is None:
            self._auxiliary = Auxiliary(self._settings.now(), deck=self._deck)
        return self._auxiliary

    @property
    def can_learn(self) -> bool:
        """Whether background reviews are useful with the current model."""
        return self._model is not None and traits_of(self._model).learns

    @property
    def given(self) -> bool:
        """Whether the model was passed as an object."""
        return self._given

    def renew(self) -> None:
        """Rebuild the configured models before the next turn."""
        self._looked = False
        if self._auxiliary is not None:
            self._retired.append(self._auxiliary)
            self._auxiliary = None
        self._retired += [model for _, model in self._made]
        self._made.clear()
        if not self._given:
            self.use(None)

    def use(self, model: ChatModel | None) -> None:
        """Use this model from the next turn on; None restores the configured model."""
        check_given(model)
        if self._model is not None and self._given:
            self._retired.append(self._model)
        self._model, self._given = model, model is not None

    @asynccontextmanager
    async def lent(self, name: str = "") -> AsyncIterator[ChatModel]:
        """Yield the conversation's model, or the model `name`, which is closed afterwards."""
        if not name:
            yield await in_thread(getattr, self, "main")
            return
        model = await in_thread(self._built, self._settings.now(model=name))
        try:
            yield model
        finally:
            await model.aclose()

    async def make_ready(self, note: Callable[[str], None], *, alone: bool = True) -> None:
        """Build and prepare the model; ask the user first if the settings don't specify one.

        `alone` means that no other turn is running, which might use a model from earlier.
        """
        check_given(self._model if self._given else None)  # the policy may have changed
        self._settings.now().policy.check("cassettes", self._deck.mode)
        if can_ask(self._shell):
            await self.offer()
        if self._model is None:
            self._model = await in_thread(self._named, self._settings.now())
        self._retire_others()
        while alone and self._retired:  # close connections and child processes
            await self._retired.pop().aclose()
        if self._ready is not self._model:
            await prepare(self.main, self._shell, self._settings.now(), note)
            self._ready = self._model

    async def offer(self, *, again: bool = False) -> None:
        """Offer the user a server found on this machine; with `again`, even after a refusal."""
        if again:
            self._declined.clear()
        elif self._given or self._looked:
            return
        if await offer_servers(self._settings.now(), ask_user, self._declined):
            self.renew()
        self._looked = True

    def another(self) -> tuple[ChatModel, bool]:
        """Return a model for reviews in another thread, and whether that thread must close it."""
        given = self._model if self._given else None
        settings = self._settings.now()
        main = given or self._built(settings)
        return for_reviews(settings, main, given=given is not None, deck=self._deck)

    def sees_images(self) -> bool:
        """Return whether the model is known to accept images."""
        return sees(self._settings.now(), self.name, given=self._model if self._given else None)

    def pictures(self, expressions: tuple[str, ...], model: ChatModel) -> Sequence[Attachment]:
        """Return images for a model; raise `ConfigError` if it is not known to accept any."""
        if not expressions:
            return ()
        from hermes_nb.notebook.attachments import attachments

        if sees(self._settings.now(), model.name, given=model if self._given else None):
            return attachments(expressions, self._shell)
        raise ConfigError(
            f"{model.name} is not known to accept images, so nothing was sent. Models that do: "
            f"{', '.join(seeing())} and others (`--model NAME`). Or set `auxiliary.vision` to one "
            "that describes images for this model; if this model accepts them, use `%hermes "
            "config vision on`"
        )

    def run_here(self, settings: Settings) -> bool:
        """Return whether the model runs on this machine, so that its requests are free."""
        if self._given:
            return False
        end = settings.endpoint
        if self._model is not None and traits_of(self._model).local:
            return True
        # Without an address, name or key, the model is the built-in one or an accepted local
        # server.
        host = urlsplit(end.base_url).hostname or ""
        several = end.model in settings.composed  # each member has its own address
        return not end.named or end.model == EMBEDDED or (is_loopback(host) and not several)

    def address(self, settings: Settings, *, named: bool = False) -> str:
        """Return the address that requests go to, or "" for a model passed as an object.

        `named` means that `settings` specify a model for a single turn, not the current one.
        """
        if self._given and not named:
            return ""
        end = settings.endpoint
        if self.run_here(settings) and not named:
            return end.base_url or "this machine"
        here = "this machine" if end.model == "embedded" else "api.openai.com"
        return redact(end.base_url or here)

    def budgets(
        self, limits: Limits, settings: Settings, note: Callable[[str], None]
    ) -> list[Budget]:
        """Return a turn's budgets, without a cost limit if the model runs locally."""
        if limits.cost is not None and self.run_here(settings):
            note("The model runs on this machine and costs nothing: `--max-cost` has no effect.")
            limits = replace(limits, cost=None)
        return [Budget(limits, scope="this turn")] if limits else []

    def budget(self, settings: Settings) -> BudgetSettings:
        """Return the configured budget, without a cost limit if the model runs locally."""
        return settings.budget.without_cost() if self.run_here(settings) else settings.budget

    def _named(self, settings: Settings) -> ChatModel:
        """Return the model in the settings; reuse an existing one if nothing has changed."""
        found = next((each for each in self._made if each[0] == settings), None)
        if found is None:
            found = settings, self._built(settings)
        else:
            self._made.remove(found)
        self._made.append(found)
        return found[1]

    def _retire_others(self) -> None:
        """Retire unused models that run on this machine, and the oldest of the rest."""
        others = [each for each in self._made if each[1] is not self._model]
        kept = [each for each in others if not traits_of(each[1]).local][-MOST_KEPT:]
        gone = [each for each in others if each not in kept]
        self._retired += [model for _, model in gone]
        self._made = [each for each in self._made if each not in gone]

    def _built(self, settings: Settings) -> ChatModel:
        variables = partial(variables_of, self._shell)
        return build_model(settings, variables=variables, deck=self._deck)


def sees(settings: Settings, name: str, *, given: ChatModel | None = None) -> bool:
    """Return whether a model is known to accept images, directly or via an auxiliary vision model.

    `given` is a model passed as an object; if its `vision` attribute is a bool, that decides.
    """
    if given is None and "vision" in settings.auxiliary and not traits_named(name).small:
        return True
    if settings.vision is not None:
        return settings.vision
    said = getattr(given, "vision", None)
    if isinstance(said, bool):
        return said
    end = settings.endpoint
    if (composed := settings.composed.get(end.model)) is not None:
        end = composed.answers or end
        name = end.model
    return profile_for(name or end.model, end.base_url or None).vision
