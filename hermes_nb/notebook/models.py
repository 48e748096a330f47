"""The models of one kernel: built on first use, replaced between turns, closed when replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes_nb.agent.models import Auxiliary, build_model, check_given, for_reviews
from hermes_nb.agent.settings.config import BudgetSettings, Settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import ChatModel, Variable
from hermes_nb.core.threads import in_thread
from hermes_nb.models.cassette import Deck
from hermes_nb.models.installed import EMBEDDED
from hermes_nb.models.profiles import is_loopback, profile_for, seeing, traits_named, traits_of
from hermes_nb.notebook.approval import ask_user, offer_servers, prepare
from hermes_nb.notebook.shell import Shell, can_ask

if TYPE_CHECKING:
    from hermes_nb.models.servers import ServerIdentity


class ModelsInUse:
    """The conversation's model and the auxiliary ones, as set by the settings or the user."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        variables: Callable[[], Sequence[Variable]],
        deck: Deck,
    ) -> None:
        self._settings = settings
        self._variables = variables
        self._deck = deck
        self._model: ChatModel | None = None
        self._given = False
        self._ready: ChatModel | None = None
        self._auxiliary: Auxiliary | None = None
        self._retired: list[ChatModel | Auxiliary] = []
        self._looked = False
        self._declined: set[ServerIdentity] = set()

    @property
    def name(self) -> str:
        """The name of the current model, "" before the first turn."""
        return self._model.name if self._model else ""

    @property
    def main(self) -> ChatModel:
        """The conversation's model; raise `ConfigError` if none is configured."""
        if self._model is None:
            self._model = self._built()
        return self._model

    @property
    def auxiliary(self) -> Auxiliary:
        """The models for background tasks."""
        if self._auxiliary is None:
            self._auxiliary = Auxiliary(self._settings(), deck=self._deck)
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
        """Rebuild the models of the settings before the next turn."""
        self._looked = False
        if self._auxiliary is not None:
            self._retired.append(self._auxiliary)
            self._auxiliary = None
        if not self._given:
            self.use(None)

    def use(self, model: ChatModel | None) -> None:
        """Use this model from the next turn on; None restores the model of the settings."""
        check_given(model)
        if self._model is not None:
            self._retired.append(self._model)
        self._model, self._given = model, model is not None

    async def make_ready(
        self,
        shell: Shell,
        note: Callable[[str], None],
    ) -> None:
        """Build and prepare the model; ask the user first if the settings name none."""
        check_given(self._model if self._given else None)  # the policy may have changed
        self._settings().policy.check("cassettes", self._deck.mode)
        if can_ask(shell):
            await self.offer()
        while self._retired:  # close connections and child processes
            await self._retired.pop().aclose()
        if self._model is None:
            self._model = await in_thread(self._built)
        if self._ready is not self._model:
            await prepare(self.main, shell, self._settings(), note)
            self._ready = self._model

    async def offer(self, *, again: bool = False) -> None:
        """Offer the user a server found on this machine; `again` also after a refusal."""
        if again:
            self._declined.clear()
        elif self._given or self._looked:
            return
        if await offer_servers(self._settings(), ask_user, self._declined):
            self.renew()
        self._looked = True

    def another(self) -> tuple[ChatModel, bool]:
        """Return a model for reviews in another thread, and whether that thread must close it."""
        given = self._model if self._given else None
        main = given or self._built()
        return for_reviews(self._settings(), main, given=given is not None, deck=self._deck)

    def sees_images(self) -> bool:
        """Return whether the model is known to accept images."""
        return sees(self._settings(), self.name, given=self._model if self._given else None)

    def require_eyes(self, model: ChatModel) -> None:
        """Raise `ConfigError` for a model that is not known to accept images."""
        if sees(self._settings(), model.name, given=model if self._given else None):
            return
        raise ConfigError(
            f"{model.name} is not known to take pictures, so nothing was sent. Models that do: "
            f"{', '.join(seeing())} and others (`--model NAME`), or one as `auxiliary.vision` that "
            "describes them; if this one does, say so with `%hermes config vision on`"
        )

    def run_here(self, settings: Settings) -> bool:
        """Return whether the model runs on this machine, so that its requests are free."""
        if self._given:
            return False
        end = settings.endpoint
        if self._model is not None and traits_of(self._model).local:
            return True
        # Without address, name or key the model is built in, or a local server that was accepted.
        host = urlsplit(end.base_url).hostname or ""
        several = end.model in settings.composed  # each member has its own address
        return not end.named or end.model == EMBEDDED or (is_loopback(host) and not several)

    def budget(self, settings: Settings) -> BudgetSettings:
        """Return the budget of the settings, without a cost limit if the model runs locally."""
        return settings.budget.without_cost() if self.run_here(settings) else settings.budget

    def _built(self) -> ChatModel:
        return build_model(self._settings(), variables=self._variables, deck=self._deck)


def sees(settings: Settings, name: str, *, given: ChatModel | None = None) -> bool:
    """Return whether a model is known to accept images, itself or by an auxiliary vision model.

    `given` is a model passed as an object; its attribute `vision` may be a bool that decides.
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
