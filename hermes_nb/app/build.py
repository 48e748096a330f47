"""The composition root: the one place that names concrete classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hermes_nb.app.config import Endpoint, Settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import Approver, ChatModel, Keeper, SessionStore, Variable
from hermes_nb.core.tools import Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.safety.guard import Guard

Variables = Callable[[], Sequence[Variable]]
EMBEDDED = "embedded"
WAYS_OUT = (
    "no model is set up. Ways out: set OPENAI_API_KEY (or OPENROUTER_API_KEY) and HERMES_NB_MODEL; "
    "start a local server (Ollama, LM Studio, llama.cpp, vLLM); or use the built-in model: "
    '`pip install "hermes_nb[local]"`, then `python -m hermes_nb.models.weights` fetches it once'
)


def build_model(settings: Settings, *, variables: Variables = tuple) -> ChatModel:
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
    models = [Retrying(_chat(end, settings.window)) for end in (chosen, *settings.fallbacks)]
    return models[0] if len(models) == 1 else Fallback(models)


def build_tools(
    root: Path,
    *,
    extra: Toolset | None = None,
    guard: Guard,
    approver: Approver,
    keeper: Keeper | None = None,
    spill: Path | None = None,
) -> Toolset:
    """Return the tools for a working directory: undoable, guarded and limited.

    `extra` are tools from a higher layer (the kernel's); `keeper` saves what a call changes;
    `spill` is where output over the cap is kept in full.
    """
    from hermes_nb.tools.files import files
    from hermes_nb.tools.keep import checkpointed
    from hermes_nb.tools.terminal import terminal
    from hermes_nb.tools.wrap import asking, limited

    readable = (spill,) if spill else ()
    everything = files(root, also_readable=readable) + terminal(root)
    if extra is not None:
        everything = extra + everything
    usable = everything.usable()
    kept = usable if keeper is None else checkpointed(usable, keeper, root)
    return limited(asking(kept, guard, approver), spill=spill)


def embedded_notice(model: ChatModel) -> str | None:
    """Return what a user has to know about the embedded model, None if this is not it."""
    from hermes_nb.models.embedded import NOTICE, EmbeddedModel

    return NOTICE if isinstance(model, EmbeddedModel) else None


def open_store(settings: Settings) -> SessionStore:
    """Return the session store; nothing is created before something is stored."""
    return SqliteStore(settings.home / "notebook.db")


def _chat(end: Endpoint, window: int | None) -> ChatModel:
    from hermes_nb.models.openai_chat import OpenAIChat
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
    return OpenAIChat(
        name, base_url=end.base_url or None, api_key=end.api_key or None, window=window
    )


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
