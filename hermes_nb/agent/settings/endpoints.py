"""The models in the settings, each with its server and key.

A key is sent only to the host it was configured for. Only this module reads groups of model name,
address and key: for the conversation, fallbacks, jobs, and parts of composed models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from string import Template
from typing import Annotated, Literal, cast, get_args
from urllib.parse import urlsplit

from hermes_nb.agent.settings.declare import Setting, declared
from hermes_nb.agent.settings.sources import Picker
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
from hermes_nb.models.profiles import WireName, is_loopback

Job = Literal["compression", "recall", "titles", "vision", "mixture", "reviews"]
"""Work outside the conversation that may use its own model."""
JOBS: tuple[Job, ...] = get_args(Job)


OURS = frozenset({"model", "messages", "tools", "tool_choice", "stream", "stream_options", "n"})
"""Request fields that `model_options` cannot set."""


def model_options(given: Json) -> Mapping[str, Mapping[str, object]]:
    """Return the additional request fields, by model; raise ValueError if they are invalid."""
    if not isinstance(given, Mapping) or not all(isinstance(e, Mapping) for e in given.values()):
        raise ValueError("a group of fields for each model: {gpt-5: {effort: low}}")
    for name, each in given.items():
        if wrong := sorted(OURS & {str(key) for key in each}):
            raise ValueError(f"no {', '.join(wrong)} for {name!r}, because Hermes sets it")
        if each.get("effort", "low") not in get_args(Effort):
            raise ValueError(f"an effort of low, medium or high for {name!r}")
    return {str(name): {str(k): v for k, v in each.items()} for name, each in given.items()}


def _default_model(given: Json) -> str:
    """Return the model's name, which Hermes Agent also writes as `model: {default: NAME}`."""
    if isinstance(given, Mapping):
        given = given.get("default") or given.get("name") or ""
    return str(Setting("model").converted(given))


def _named_model(given: Json) -> Mapping[str, Json]:
    """Return a settings group unchanged; convert a bare model name to a group with that name."""
    if isinstance(given, str | Mapping):
        return given if isinstance(given, Mapping) else {"model": given}
    raise ValueError(_A_MODEL)


_A_MODEL = "a model's name, or a group with `model`"
ModelGroup = Mapping[str, Json]
"""The keys `model`, `base_url`, `provider` and `key_env`, all of them optional."""


def _job(key: str) -> Setting:
    return Setting(key, valid=_A_MODEL, read=_named_model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKeys:
    """The settings for the conversation's model."""

    model: Annotated[str, Setting("model", foreign="model", read=_default_model)] = ""
    """The model's name; `embedded` is the built-in model."""
    base_url: Annotated[str, Setting("base_url", foreign="model.base_url")] = ""
    """The address of an OpenAI-compatible server, with its `/v1`."""
    api_key: Annotated[str, Setting("api_key", secret=True)] = field(default="", repr=False)
    """The API key; `%hermes key` saves one without showing it."""
    key_env: Annotated[str, Setting("key_env")] = ""
    """The environment variable with the API key for the `base_url` in the same place."""
    wire: Annotated[Literal["", "chat", "messages", "responses"], Setting("wire")] = ""
    """The protocol: `chat` is OpenAI's chat.completions, `responses` its Responses, and `messages`
    Anthropic's Messages. By default, the protocol of the provider and model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryKeys:
    """The settings for models that work outside the conversation."""

    model: Annotated[str, Setting("auxiliary.model")] = ""
    """A cheaper model for summaries, recall and titles; by default the conversation's model."""
    base_url: Annotated[str, Setting("auxiliary.base_url")] = ""
    """The address of that model's server, if it differs from the conversation's."""
    provider: Annotated[str, Setting("auxiliary.provider")] = ""
    """The provider of that model, `openai` or `openrouter`, instead of an address."""
    key_env: Annotated[str, Setting("auxiliary.key_env")] = ""
    """The environment variable with that model's API key."""
    compression: Annotated[ModelGroup, _job("auxiliary.compression")] = field(default_factory=dict)
    """The model that summarises a long conversation."""
    recall: Annotated[ModelGroup, _job("auxiliary.recall")] = field(default_factory=dict)
    """The model that condenses past sessions."""
    titles: Annotated[ModelGroup, _job("auxiliary.titles")] = field(default_factory=dict)
    """The model that generates the titles of sessions."""
    vision: Annotated[ModelGroup, _job("auxiliary.vision")] = field(default_factory=dict)
    """The model that describes images for models that don't accept them."""
    mixture: Annotated[ModelGroup, _job("auxiliary.mixture")] = field(default_factory=dict)
    """The model that combines the answers of a mixture without an aggregator."""
    reviews: Annotated[ModelGroup, _job("auxiliary.reviews")] = field(default_factory=dict)
    """The model of background reviews; by default the conversation's model."""


def auxiliary_models(
    picked: Picker, own: Endpoint, env: Mapping[str, str]
) -> Mapping[Job, Endpoint]:
    """Return the models for work outside the conversation, by job.

    A model without an address uses the server of the conversation's model, if that model has one.
    `compression`, `recall` and `titles` default to the model for all jobs, or to the one for
    compression. `reviews` has no such default, so that a review can use the prompt cache of the
    conversation's model.
    """
    keys = picked.group(AuxiliaryKeys)
    given = {name: getattr(keys, name) for name in ("model", "base_url", "provider", "key_env")}
    common = _group_endpoint(given, own, env)
    found: dict[Job, Endpoint] = {}
    for job in JOBS:
        end = _group_endpoint(getattr(keys, job), own, env)
        if end is None and job in ("compression", "recall", "titles"):
            end = common or found.get("compression")
        if end is not None:
            found[job] = end
    return found


Place = Callable[[Json], Endpoint | None]
"""Returns the endpoint for a model's name or group, or None if its server is unknown."""
Reader = Callable[[Json, Place], Mapping[str, Composed]]
"""Returns the composed models in a group of config.yaml, by name; raises `ConfigError`."""


def composed_models(
    picked: Picker, own: Endpoint, env: Mapping[str, str]
) -> Mapping[str, Composed]:
    """Return the models that combine several others, by name.

    Each kind has its own group in config.yaml, read by the entry with the same name in
    `hermes_nb.model_settings`. The entry is imported only if the group is not empty. Raises
    `ConfigError` for an invalid group.
    """

    def place(entry: Json) -> Endpoint | None:
        return _group_endpoint(entry if isinstance(entry, Mapping) else {"model": entry}, own, env)

    found: dict[str, Composed] = {}
    for point in plugins(SETTINGS_GROUP):
        given = picked.value(Setting(point.name, kind=Mapping, default={}))
        if given:
            found.update(cast("Reader", loaded(point))(given, place))
    return found


def _group_endpoint(
    entry: Mapping[str, Json], own: Endpoint, env: Mapping[str, str]
) -> Endpoint | None:
    """Return the endpoint for a settings group, or None if it has no model or an unknown server."""
    provider = str(entry.get("provider") or "").lower()
    if entry.get("base_url") or provider not in ("", "auto", "main"):
        return _fallback(entry, env)
    model = str(entry.get("model") or "")
    if not model:
        return None
    if named_provider(model, env) is not None:
        return _fallback(entry, env)
    base_url, key = own.base_url, own.api_key
    if not base_url or own.base_url in (env.get("OPENAI_BASE_URL"), OPENROUTER_URL):
        base_url, key = _provider_of_the_environment(model, env)
    key = env.get(str(entry.get("key_env") or ""), "") or key
    wire = _wire_of(entry) or (own.wire if base_url == own.base_url else "")
    return Endpoint(model=model, base_url=base_url, api_key=key, wire=wire)


def endpoint(picked: Picker, env: Mapping[str, str]) -> Endpoint:
    """Return the conversation's model."""
    keys = picked.group(ModelKeys)
    model, base_url = keys.model, keys.base_url
    api_key = keys.api_key if _key_is_for(picked, keys, env) else ""
    named = None if base_url else named_provider(model, env)
    if named is not None:
        model, base_url, api_key = named.model, named.base_url, api_key or named.api_key
        picked.sources.setdefault("base_url", f"the provider in {keys.model}")
    for family, name, value in (("models", "model", model), ("endpoints", "base_url", base_url)):
        why = picked.settled.why(family, value, f"added:{value}")
        if value and why and not is_composed(value):
            picked.hold(name, why)
    if model == EMBEDDED:
        return Endpoint(model=EMBEDDED)
    if not base_url and not api_key:
        base_url, api_key = _provider_of_the_environment(model, env)
        if api_key or base_url:
            variable = "OPENROUTER_API_KEY" if "openrouter" in base_url else "OPENAI_*"
            picked.sources.setdefault("base_url", f"{variable} in the environment")
    api_key = api_key or _named_key(picked, keys.key_env, env)
    if named is None:
        api_key = api_key or _key_for(base_url, env)
    return Endpoint(model=model, base_url=base_url, api_key=api_key, wire=keys.wire)


def _key_is_for(picked: Picker, keys: ModelKeys, env: Mapping[str, str]) -> bool:
    """Return whether `api_key` was set for the address in use.

    It was not if the address comes from a source that takes precedence over the key's source.
    """

    def address(model: str, base_url: str) -> str:
        named = None if base_url else named_provider(model, env)
        return named.base_url if named else base_url

    if not keys.api_key:
        return False
    known = declared(ModelKeys)
    its = (picked.beside(known[name], known["api_key"]) for name in ("model", "base_url"))
    return address(keys.model, keys.base_url) == address(*map(str, its))


def _named_key(picked: Picker, name: str, env: Mapping[str, str]) -> str:
    """Return the key that `key_env` names, if set in the same source as the address."""
    places = [picked.sources.get(n) for n in ("base_url", "key_env")]
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
    """Return the API key for an address: a key is sent only to the host it was configured for.

    A server on this machine gets none. Any address other than OpenRouter's that has no key of its
    own gets `OPENAI_API_KEY`.
    """
    if not base_url:
        return env.get("OPENAI_API_KEY", "")
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:  # not an address; the request will fail
        return ""
    if is_loopback(host):
        return ""
    variable = key_variable(host, env)
    other = "" if host.endswith("openrouter.ai") else env.get("OPENAI_API_KEY", "")
    return env.get(variable, "") or other


def key_variable(host: str, env: Mapping[str, str]) -> str:
    """Return the environment variable with the API key for a host."""
    for provider in PROVIDERS.values():
        its = urlsplit(provider.endpoint("", env).base_url).hostname or ""
        if provider.key and its and f".{host}".endswith(f".{its.removeprefix('api.')}"):
            return provider.key
    return "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider whose name can be part of a model's name: `anthropic/claude-opus-4-8`."""

    base_url: str
    """Its address; "" for OpenAI's. `$NAME` means an environment variable."""
    key: str = ""
    """The environment variable with its API key; "" if it needs none."""

    def endpoint(self, model: str, env: Mapping[str, str]) -> Endpoint:
        """Return the endpoint for one of its models.

        If a variable is not set, its name stays in the address, and the request fails with it.
        """
        address = Template(self.base_url).safe_substitute(env)
        return Endpoint(model=model, base_url=address, api_key=env.get(self.key, ""))


PROVIDERS: Mapping[str, Provider] = {
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "azure": Provider("$AZURE_OPENAI_ENDPOINT/openai/v1", "AZURE_OPENAI_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "ollama": Provider("http://127.0.0.1:11434/v1"),
    "openai": Provider("", "OPENAI_API_KEY"),
    "openrouter": Provider(OPENROUTER_URL, "OPENROUTER_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
}
"""The known providers by name, as of 2026-11."""


def named_provider(model: str, env: Mapping[str, str]) -> Endpoint | None:
    """Return the endpoint of `PROVIDER/NAME`, or None if a model is not named that way.

    OpenRouter and proxies name their models that way, too. Therefore the name is not split if
    OPENAI_BASE_URL is set, or if OpenRouter has a key and the provider has none.
    """
    name, _, rest = model.partition("/")
    known = PROVIDERS.get(name)
    if known is None or not rest or env.get("OPENAI_BASE_URL"):
        return None
    if known.key and not env.get(known.key) and env.get("OPENROUTER_API_KEY"):
        return None
    return known.endpoint(rest, env)


def with_keys(env: Mapping[str, str]) -> dict[str, Endpoint]:
    """Return the providers whose keys are set, by name; none if OPENAI_BASE_URL is set."""
    if env.get("OPENAI_BASE_URL"):
        return {}
    return {n: p.endpoint("", env) for n, p in PROVIDERS.items() if p.key and env.get(p.key)}


def fallbacks(document: Mapping[str, Json], env: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Return the `fallback_providers` that have a model and a known server, in order.

    The list is shared with Hermes Agent, which supports more providers. An entry with an unknown
    provider is skipped and never sent to another provider's address.
    """
    entries = document.get("fallback_providers")
    listed = entries if isinstance(entries, list) else []
    found = (_fallback(entry, env) for entry in listed if isinstance(entry, Mapping))
    return tuple(end for end in found if end is not None)


def _fallback(entry: Mapping[str, Json], env: Mapping[str, str]) -> Endpoint | None:
    model = str(entry.get("model") or "")
    base_url = str(entry.get("base_url") or "")
    provider = str(entry.get("provider") or "openai").lower()
    end = None if base_url or entry.get("provider") else named_provider(model, env)
    if end is None and not base_url and provider in PROVIDERS and model:
        end = PROVIDERS[provider].endpoint(model, env)
    if end is None and not (model and base_url):
        return None
    named = env.get(str(entry.get("key_env") or ""), "")
    end = end or Endpoint(model=model, base_url=base_url, api_key=_key_for(base_url, env))
    return replace(end, api_key=named or end.api_key, wire=_wire_of(entry))


def _wire_of(entry: Mapping[str, Json]) -> WireName | Literal[""]:
    wire = entry.get("wire")
    return cast("WireName", wire) if wire in get_args(WireName) else ""
