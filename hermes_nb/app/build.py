"""The composition root: the one place that names concrete classes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_nb.app.config import Endpoint, Settings
from hermes_nb.app.knowledge import Knowledge
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import (
    Approver,
    ChatModel,
    ContextEngine,
    Keeper,
    SessionStore,
    Variable,
)
from hermes_nb.core.tools import ToolContext, Toolset
from hermes_nb.memory.curation.history import Origin
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.deck import Deck, Shelf, shelf_for
from hermes_nb.safety.guard import Guard
from hermes_nb.tools.hinted import Hinting

Variables = Callable[[], Sequence[Variable]]
EMBEDDED = "embedded"
WAYS_OUT = (
    "no model is set up. Ways out: set OPENAI_API_KEY (or OPENROUTER_API_KEY) and HERMES_NB_MODEL; "
    "start a local server (Ollama, LM Studio, llama.cpp, vLLM); or use the built-in model: "
    '`pip install "hermes_nb[local]"`, then `python -m hermes_nb.models.weights` fetches it once'
)


def build_model(
    settings: Settings, *, variables: Variables = tuple, deck: Deck | None = None
) -> ChatModel:
    """Return the model that the settings name, on the cassette of `deck` if that is on.

    Raises `ConfigError` when there is no model to be had, with the ways out; a replay needs none.
    """
    if deck is None:
        return _model(settings, variables)
    return deck.wrap(lambda: _model(settings, variables), name=settings.endpoint.model)


def build_deck(
    settings: Callable[[], Settings],
    *,
    personal: Callable[[], Sequence[str]],
    notebook: Callable[[], str] = lambda: "",
    start: Path | None = None,
) -> Deck:
    """Return what records and replays; `personal` are the running prompt's layers from the home.

    `start` is the directory that a run without a known notebook began in.
    """

    def shelf() -> Shelf:
        now = settings()
        return shelf_for(
            notebook=notebook(),
            explicit=now.cassette_file,
            home=now.home,
            mode=deck.mode,
            cwd=start,
        )

    deck = Deck(
        mode=lambda: settings().cassette,
        shelf=shelf,
        home=lambda: settings().home,
        personal=personal,
    )
    return deck


def _model(settings: Settings, variables: Variables) -> ChatModel:
    """Return the model that the settings name, with retries, fallbacks and all.

    Looks for a local server, over loopback, when nothing is named. Raises `ConfigError` when there
    is no model to be had, with the ways out.
    """
    from hermes_nb.models.failures import Fallback, Retrying

    chosen = settings.endpoint
    if chosen.model == EMBEDDED:
        return _embedded(variables)
    if not (chosen.model or chosen.base_url or chosen.api_key):
        found = _local_server() if settings.local_servers else None
        if found is None:
            return _embedded(variables)
        chosen = found
    models = [Retrying(_chat(end, settings)) for end in (chosen, *settings.fallbacks)]
    return models[0] if len(models) == 1 else Fallback(models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where tools work, and for whom.

    `root` is the working directory. `own` are tools of a higher layer (the kernel's), `known` those
    of what Hermes knows, `foreign` the user's and other packages'; `tell` hears which of those
    cannot be used. `keeper` saves what a call changes. `hints` has the running session's.
    """

    root: Path
    home: Path
    guard: Guard
    approver: Approver
    own: Toolset = field(default_factory=Toolset)
    known: Toolset = field(default_factory=Toolset)
    foreign: Toolset = field(default_factory=Toolset)
    tell: Callable[[str], None] = lambda _: None
    keeper: Keeper | None = None
    hints: Hinting | None = None

    def with_known(self, known: Toolset) -> Place:
        """Return the place with these tools for what Hermes knows."""
        return replace(self, known=known)


def build_tools(place: Place, *, mark: bool = True) -> Toolset:
    """Return the tools for a place: undoable, guarded, limited, with hints.

    `mark` puts untrusted results between marks; a small model would only be confused by them.
    """
    from hermes_nb.tools.files import files
    from hermes_nb.tools.hinted import with_hints
    from hermes_nb.tools.installed import without_taken
    from hermes_nb.tools.keep import checkpointed
    from hermes_nb.tools.marking import marked
    from hermes_nb.tools.terminal import terminal
    from hermes_nb.tools.wrap import asking, limited

    spill = place.home / "outputs"
    tools = place.own + files(place.root, also_readable=(spill,)) + terminal(place.root)
    tools += place.known
    tools = (tools + without_taken(place.foreign, tools, place.tell)).usable()
    if place.keeper is not None:
        tools = checkpointed(tools, place.keeper, place.root)
    tools = limited(asking(tools, place.guard, place.approver), spill=spill)
    if mark:
        tools = marked(tools, place.guard.taint)
    return tools if place.hints is None else with_hints(tools, place.hints)


def known_tools(
    knowledge: Knowledge,
    *,
    model: ChatModel,
    session: Callable[[], str],
    origin: Callable[[ToolContext], Origin],
    spent: Callable[[Usage, str], None] = lambda *_: None,
) -> Toolset:
    """Return the tools for memory, past sessions and skills, as far as they are switched on.

    `model` condenses what was said, and `spent` hears what that used; `session()` is the running
    session's id, and `origin` what a write is recorded under.
    """
    from hermes_nb.memory.condense import Condenser
    from hermes_nb.tools.skill_tools import skills
    from hermes_nb.tools.stores import memory_tools, session_tools

    settings = knowledge.settings
    tools = Toolset()
    if settings.memory.enabled:
        tools += memory_tools(
            knowledge.memory,
            where=origin,
            write_approval=settings.memory.write_approval,
            on_written=knowledge.written,
        )
    condenser = Condenser(recall=knowledge.recall, model=model, spent=spent)
    tools += session_tools(knowledge.recall, current=session, condenser=condenser)
    if settings.skills.enabled:
        tools += skills(knowledge.library, session=session)
    return tools


def build_engine(
    settings: Settings,
    *,
    model: ChatModel,
    auxiliary: ChatModel | None,
    store: SessionStore,
    session_id: str,
    knowledge: Knowledge,
    memory: Toolset,
) -> ContextEngine:
    """Return the context engine that the settings name, for one session.

    `memory` holds the memory tool for the look before anything is dropped. Raises `ConfigError`.
    """
    from hermes_nb.context.engine import Setup, make_engine
    from hermes_nb.context.gauge import Limits
    from hermes_nb.core.calls import in_thread
    from hermes_nb.learning.flush import flush

    async def before(messages: Sequence[Message]) -> None:
        if (provider := knowledge.provider) is not None:
            await in_thread(lambda: provider.before_compress(messages))

    chosen = settings.compression
    limits = Limits(
        threshold=chosen.threshold,
        max_prompt_tokens=chosen.max_prompt_tokens,
        target_ratio=chosen.target_ratio,
        protect_last_n=chosen.protect_last,
        automatic=chosen.enabled,
    )
    return make_engine(
        chosen.engine,
        Setup(
            model=model,
            auxiliary=auxiliary,
            store=store,
            session_id=session_id,
            window=settings.window,
            limits=limits,
            flush=lambda messages: flush(messages, model=auxiliary or model, memory=memory),
            before_compress=before,
        ),
    )


def build_auxiliary(settings: Settings, *, deck: Deck | None = None) -> ChatModel | None:
    """Return the model for work beside the conversation, None when none is named."""
    from hermes_nb.models.failures import Retrying

    if settings.auxiliary is None:
        return None
    end = settings.auxiliary

    def make() -> ChatModel:
        return Retrying(_chat(end, replace(settings, window=None)))

    return make() if deck is None else deck.wrap(make, name=end.model)


def is_embedded(model: ChatModel) -> bool:
    """Say whether this is the embedded model, which brings its own small prompt and tools.

    A replay of it is asked in the same way, and goes by the same name.
    """
    if _is_really_embedded(model):
        return True
    from hermes_nb.models.profiles import EMBEDDED

    return model.name == EMBEDDED


def embedded_notice(model: ChatModel) -> str | None:
    """Return what a user has to know about the embedded model, None if this is not it."""
    if not _is_really_embedded(model):
        return None
    from hermes_nb.models.embedded import NOTICE

    return NOTICE


def _is_really_embedded(model: ChatModel) -> bool:
    module = sys.modules.get("hermes_nb.models.embedded")  # if it is, it has been imported
    return module is not None and isinstance(model, module.EmbeddedModel)


def open_store(settings: Settings, warn: Callable[[str], None]) -> SessionStore:
    """Return the session store; nothing is created before something is stored.

    `warn` hears of damage that was repaired, and of what could not be.
    """
    return SqliteStore(settings.home / "notebook.db", warn=warn)


def _chat(end: Endpoint, settings: Settings) -> ChatModel:
    from hermes_nb.models.openai_chat import OPENAI, OpenAIChat
    from hermes_nb.models.prices import Priced
    from hermes_nb.models.profiles import profile_for
    from hermes_nb.models.servers import models_at

    name = end.model
    if not name and end.base_url:
        served = models_at(end.base_url, api_key=end.api_key, timeout=5.0)
        if not served:
            message = f"{end.base_url} lists no models; set HERMES_NB_MODEL"
            raise ConfigError(message)
        name = served[0]
    if not name:
        message = "there is a key but no model; set HERMES_NB_MODEL, or %hermes model NAME"
        raise ConfigError(message)
    address = end.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
    profile = profile_for(name, address)
    if settings.vision is not None:
        profile = replace(profile, vision=settings.vision)
    chat = OpenAIChat(
        name,
        base_url=end.base_url or None,
        api_key=end.api_key or None,
        profile=profile,
        window=settings.window,
        cache_ttl=settings.cache_ttl,
    )
    return Priced(chat, base_url=address, ttl=settings.cache_ttl)


def offered_models(settings: Settings) -> list[tuple[str, tuple[str, ...]]]:
    """Return addresses and what is served there: the endpoint that is set, or local servers.

    Asks them, so it may take seconds; one that does not answer offers nothing.
    """
    from hermes_nb.models.servers import local_servers, models_at

    end = settings.endpoint
    if end.base_url:
        return [(end.base_url, tuple(models_at(end.base_url, api_key=end.api_key, timeout=5.0)))]
    if end.api_key or not settings.local_servers:
        return []
    return [(served.base_url, tuple(served.models)) for served in local_servers()]


def _local_server() -> Endpoint | None:
    from hermes_nb.models.servers import local_servers

    for served in local_servers():
        return Endpoint(model=served.models[0], base_url=served.base_url)
    return None


def _embedded(variables: Variables) -> ChatModel:
    import importlib.util

    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError(WAYS_OUT)
    from hermes_nb.models.embedded import EmbeddedModel

    return EmbeddedModel(variables=variables)
