"""The models that the settings name, each with where it is served and its key.

A key never goes to a host it was not given for. Groups of a model's name, address and key are read
here and nowhere else: the conversation's own, fallbacks, those of jobs, the parts of composed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

from hermes_nb.agent.settings.sources import Picker
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import Effort
from hermes_nb.models.installed import (
    EMBEDDED,
    SETTINGS_GROUP,
    Composed,
    Endpoint,
    is_composed,
)
from hermes_nb.models.profiles import is_loopback

Job = Literal["compression", "recall", "titles", "vision", "mixture", "reviews"]
"""Work beside the conversation that may have a model of its own."""
JOBS: tuple[Job, ...] = get_args(Job)


OURS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options", "n"})
"""Fields of a request that are no options."""


def model_options(picked: Picker) -> Mapping[str, Mapping[str, object]]:
    """Return the further fields of requests, by model; raise `ConfigError` for what are none."""
    given = picked("model_options", default={})
    fine = isinstance(given, Mapping) and all(isinstance(each, Mapping) for each in given.values())
    if not fine:
        message = "model_options has a group of fields for each model: {gpt-5: {effort: low}}"
        raise ConfigError(message)
    for name, fields in given.items():
        if wrong := sorted(OURS & {str(key) for key in fields}):
            raise ConfigError(f"model_options for {name!r} cannot set {', '.join(wrong)}")
        if fields.get("effort", "low") not in get_args(Effort):
            raise ConfigError(f"model_options for {name!r}: effort is low, medium or high")
    return {str(name): {str(k): v for k, v in each.items()} for name, each in given.items()}


def auxiliary_models(
    picked: Picker, own: Endpoint, env: Mapping[str, str]
) -> Mapping[Job, Endpoint]:
    """Return the models for work beside the conversation, by job.

    What names no address is asked where the conversation's model is, if that was given one. The one
    of all jobs condenses and names; where there is none, that is the one for compression. A review
    goes on with what is cached for the conversation's own, unless one is named for it.
    """
    names = ("model", "base_url", "provider", "key_env")
    given = {name: picked.at("auxiliary", name, default="") for name in names}
    common = _served(given, own, env)
    found: dict[Job, Endpoint] = {}
    for job in JOBS:
        entry = picked.at("auxiliary", job, default={})
        if not isinstance(entry, str | Mapping):
            raise ConfigError(f"auxiliary.{job} is a model's name, or a group with `model`")
        end = _served(entry if isinstance(entry, Mapping) else {"model": entry}, own, env)
        if end is None and job in ("compression", "recall", "titles"):
            end = common or found.get("compression")
        if end is not None:
            found[job] = end
    return found


Place = Callable[[Json], Endpoint | None]
"""Returns the endpoint of a model's name or of its group, None for one that cannot be placed."""
Reader = Callable[[Json, Place], Mapping[str, Composed]]
"""Returns the composed models of a group of config.yaml, by name; raises `ConfigError`."""


def composed_models(
    picked: Picker, own: Endpoint, env: Mapping[str, str]
) -> Mapping[str, Composed]:
    """Return the models that are made of others, by name.

    Each group of them is read by the entry of its name in `hermes_nb.model_settings`, which is
    imported where the group has something. Raises `ConfigError` for what cannot be made.
    """

    def place(entry: Json) -> Endpoint | None:
        return _served(entry if isinstance(entry, Mapping) else {"model": entry}, own, env)

    found: dict[str, Composed] = {}
    for point in plugins(SETTINGS_GROUP):
        given = picked(point.name, default={})
        if given != {}:
            found.update(cast("Reader", loaded(point))(given, place))
    return found


def _served(entry: Mapping[str, Json], own: Endpoint, env: Mapping[str, str]) -> Endpoint | None:
    """Return the model that a group names, None where it names none that can be placed."""
    provider = str(entry.get("provider") or "").lower()
    if entry.get("base_url") or provider not in ("", "auto", "main"):
        return _fallback(entry, env)
    model = str(entry.get("model") or "")
    if not model:
        return None
    base_url, key = own.base_url, own.api_key
    if not base_url or own.base_url in (env.get("OPENAI_BASE_URL"), OPENROUTER_URL):
        base_url, key = _provider_of_the_environment(model, env)
    key = env.get(str(entry.get("key_env") or ""), "") or key
    return Endpoint(model=model, base_url=base_url, api_key=key)


def endpoint(picked: Picker, env: Mapping[str, str]) -> Endpoint:
    """Return the conversation's model."""
    model = picked("model", foreign=("model",))
    if isinstance(model, Mapping):
        model = model.get("default") or model.get("name") or ""
    base_url = picked("base_url", foreign=("model", "base_url"))
    api_key = picked("api_key")
    for family, name, value in (("models", "model", model), ("endpoints", "base_url", base_url)):
        why = picked.settled.why(family, str(value), f"added:{value}")
        if value and why and not is_composed(str(value)):
            picked.hold(name, why)
    if model == EMBEDDED:
        return Endpoint(model=EMBEDDED)
    if not base_url and not api_key:
        base_url, api_key = _provider_of_the_environment(str(model), env)
        if api_key or base_url:
            named = "OPENROUTER_API_KEY" if "openrouter" in base_url else "OPENAI_*"
            picked.sources.setdefault("base_url", f"{named} in the environment")
    api_key = api_key or _named_key(picked, env) or _key_for(str(base_url), env)
    return Endpoint(model=str(model), base_url=str(base_url), api_key=api_key)


def _named_key(picked: Picker, env: Mapping[str, str]) -> str:
    """Return the key that `key_env` names, for the address that was given in the same place."""
    name, places = str(picked("key_env")), [picked.sources.get(n) for n in ("base_url", "key_env")]
    same = len({str(each).partition("HERMES_NB_")[0] for each in places}) == 1
    return env.get(name, "") if name and all(places) and same else ""


OPENROUTER_URL = "https://openrouter.ai/api/v1"


def _provider_of_the_environment(model: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return (base_url, key): OpenRouter for `vendor/name` models or if it has the only key."""
    openai_key, router_key = env.get("OPENAI_API_KEY", ""), env.get("OPENROUTER_API_KEY", "")
    if env.get("OPENAI_BASE_URL"):
        return env["OPENAI_BASE_URL"], openai_key
    if router_key and ("/" in model or not openai_key):
        return OPENROUTER_URL, router_key
    return "", openai_key


def _key_for(base_url: str, env: Mapping[str, str]) -> str:
    """Return the key that belongs to an address: a key never goes to a host it was not given for.

    A server on this machine gets none; any other address is what the user configured for
    `OPENAI_API_KEY`.
    """
    if not base_url:
        return env.get("OPENAI_API_KEY", "")
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:  # no address at all; the request will say so
        return ""
    if host == "openrouter.ai" or host.endswith(".openrouter.ai"):
        return env.get("OPENROUTER_API_KEY", "")
    if is_loopback(host):
        return ""
    return env.get("OPENAI_API_KEY", "")


PROVIDERS = {"openai": "", "openrouter": OPENROUTER_URL}
"""Addresses of the providers that Hermes Agent names, as far as we speak with them."""


def fallbacks(document: Mapping[str, Json], env: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Return the `fallback_providers` that say a model and where it is served, in their order.

    The list is shared with Hermes Agent, which knows further providers by name: an entry that we
    cannot place is left out, and never sent to somebody else's address.
    """
    entries = document.get("fallback_providers")
    listed = entries if isinstance(entries, list) else []
    found = (_fallback(entry, env) for entry in listed if isinstance(entry, Mapping))
    return tuple(end for end in found if end is not None)


def _fallback(entry: Mapping[str, Json], env: Mapping[str, str]) -> Endpoint | None:
    model = str(entry.get("model") or "")
    base_url = str(entry.get("base_url") or "")
    provider = str(entry.get("provider") or "openai").lower()
    if not model or (not base_url and provider not in PROVIDERS):
        return None
    base_url = base_url or PROVIDERS[provider]
    named = env.get(str(entry.get("key_env") or ""), "")
    return Endpoint(model=model, base_url=base_url, api_key=named or _key_for(base_url, env))
