"""Which model the settings lead to (an endpoint, a local server, the built-in one)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from hermes_nb.app.config import Endpoint, Settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import ChatModel, Variable
from hermes_nb.core.tools import Toolset
from hermes_nb.models.addresses import is_address, is_loopback
from hermes_nb.models.deck import Deck, Shelf, shelf_for
from hermes_nb.safety.visible import visible

Variables = Callable[[], Sequence[Variable]]
EMBEDDED = "embedded"
WINDOW_SECONDS = 2.0
"""How long a server is waited for that may say how long its model's context window is."""
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
    first = Retrying(_chat(chosen, settings))
    if not settings.fallbacks:
        return first
    others = replace(settings, window=None)  # what is set is the window of the model named there
    return Fallback([first, *(Retrying(_chat(end, others)) for end in settings.fallbacks)])


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


def offered(model: ChatModel, tools: Toolset) -> Toolset:
    """Return the tools that a model is really told of: the embedded one has room for a few."""
    if not is_embedded(model):
        return tools
    from hermes_nb.models.embedded.fewshot import small_tools

    return tools.only(*(small.name for small in small_tools(tools)))


def embedded_notice(model: ChatModel) -> str | None:
    """Return what a user has to know about the embedded model, None if this is not it."""
    if not _is_really_embedded(model):
        return None
    from hermes_nb.models.embedded.model import NOTICE

    return NOTICE


def _is_really_embedded(model: ChatModel) -> bool:
    module = sys.modules.get("hermes_nb.models.embedded.model")  # if it is, it has been imported
    return module is not None and isinstance(model, module.EmbeddedModel)


def _chat(end: Endpoint, settings: Settings) -> ChatModel:
    from hermes_nb.models.chat.openai_chat import OPENAI, OpenAIChat
    from hermes_nb.models.prices import Priced
    from hermes_nb.models.profiles import profile_for
    from hermes_nb.models.servers import models_at

    address = end.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
    if not is_address(address):
        message = (
            f"base_url is {visible(address)!r}; use an address such as http://127.0.0.1:8000/v1"
        )
        raise ConfigError(message)
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
    profile = profile_for(name, address)
    if settings.vision is not None:
        profile = replace(profile, vision=settings.vision)
    chat = OpenAIChat(
        name,
        base_url=end.base_url or None,
        api_key=end.api_key or None,
        profile=profile,
        window=settings.window or _served_window(end, name, known=profile.window),
        cache_ttl=settings.cache_ttl,
    )
    return Priced(chat, base_url=address, ttl=settings.cache_ttl)


def _served_window(end: Endpoint, name: str, *, known: int | None) -> int | None:
    """Return the window that a server says it serves the model with, None where it is not asked.

    The window that is `known` is a family's longest, which is what a provider mostly serves; on
    this machine it is often a shorter one.
    """
    from hermes_nb.models.servers import window_at

    if not end.base_url or (known and not is_loopback(urlsplit(end.base_url).hostname or "")):
        return None
    return window_at(end.base_url, name, api_key=end.api_key, timeout=WINDOW_SECONDS)


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
    from hermes_nb.models.embedded.model import EmbeddedModel

    return EmbeddedModel(variables=variables)
