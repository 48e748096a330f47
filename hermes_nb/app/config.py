"""Settings from every source, the nearest one first, each with a note of where it came from.

The order: what the caller says (a magic option, then `%config`) > `HERMES_NB_*` > the `hermes_nb:`
key in `config.yaml` > Hermes Agent's own keys there > the provider variables of the environment.
The working directory is no source: a cloned repository must not redirect anybody's key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from hermes_nb.app.home import home_directory, read_dotenv
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.loop import MAX_REQUESTS

ApproveMode = Literal["ask", "edits", "all", "never"]
APPROVE_MODES = get_args(ApproveMode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model and where it is served. An empty `base_url` is the provider's own."""

    model: str = ""
    base_url: str = ""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a session runs with.

    An empty endpoint means: look for a local server, else use the embedded model. `notebook` is the
    path that the user named, where finding it out would fail. `sources` says
    for every setting that is not a default where it came from.
    """

    home: Path
    endpoint: Endpoint = field(default_factory=Endpoint)
    fallbacks: tuple[Endpoint, ...] = ()
    approve: ApproveMode = "ask"
    max_requests: int = MAX_REQUESTS
    window: int | None = None
    local_servers: bool = True
    fetch_weights: bool = False
    notebook: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


def load_settings(
    *,
    home: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings; raise `ConfigError` for a value that cannot be used.

    `overrides` holds what the caller says: `model`, `base_url`, `api_key`, `approve`,
    `max_requests`, `window`, each left out or None when not given.
    """
    folder = home_directory(home)
    env = dict(os.environ if environ is None else environ)
    for key, value in read_dotenv(folder).items():
        env.setdefault(key, value)
    document = _read_yaml(folder / "config.yaml")
    picked = _Picker(overrides or {}, env, document)
    approve = picked("approve", foreign=("approvals", "mode"), default="ask")
    if approve not in APPROVE_MODES:
        approve = picked.foreign_mode(approve)
    settings = Settings(
        home=folder,
        endpoint=_endpoint(picked, env),
        fallbacks=tuple(_fallback(entry, env) for entry in _entries(document)),
        approve=approve,
        max_requests=picked.number("max_requests", ("agent", "max_turns"), MAX_REQUESTS) or 1,
        window=picked.number("window", ("model", "context_length"), None),
        local_servers=picked.flag("local_servers", default=True),
        fetch_weights=picked.flag("fetch_weights", default=False),
        notebook=str(picked("notebook")),
    )
    return replace(settings, sources=dict(picked.sources))


class _Picker:
    """Looks a setting up in the sources, nearest first, and notes which one had it."""

    def __init__(
        self, overrides: Mapping[str, Any], env: Mapping[str, str], document: Mapping[str, Any]
    ) -> None:
        self._overrides, self._env, self._document = overrides, env, document
        own = document.get("hermes_nb")
        self._own: Mapping[str, Any] = own if isinstance(own, Mapping) else {}
        self.sources: dict[str, str] = {}

    def __call__(self, name: str, *, foreign: tuple[str, ...] = (), default: Any = "") -> Any:  # noqa: ANN401 - any YAML value
        variable = f"HERMES_NB_{name.upper()}"
        for value, source in (
            (self._overrides.get(name), "given here"),
            (self._env.get(variable), variable),
            (self._own.get(name), "config.yaml, hermes_nb"),
            (_dig(self._document, foreign), "config.yaml"),
        ):
            if value not in (None, ""):
                self.sources[name] = source
                return value
        return default

    def foreign_mode(self, value: object) -> ApproveMode:
        """Translate Hermes Agent's approval modes; refuse what is neither its nor ours."""
        if self.sources.get("approve") == "config.yaml":
            return "all" if value in ("off", "none", False) else "ask"
        message = f"approve is {value!r}; use one of {', '.join(APPROVE_MODES)}"
        raise ConfigError(message)

    def number(self, name: str, foreign: tuple[str, ...], default: int | None) -> int | None:
        value = self(name, foreign=foreign, default=default)
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = 0
        if number < 1 or isinstance(value, bool):
            message = f"{name} is {value!r} ({self.sources.get(name)}); use a number above 0"
            raise ConfigError(message)
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        value = self(name, default=default)
        return str(value).strip().lower() not in ("0", "false", "no", "off")


def _endpoint(picked: _Picker, env: Mapping[str, str]) -> Endpoint:
    model = picked("model", foreign=("model",))
    if isinstance(model, Mapping):
        model = model.get("default") or model.get("name") or ""
    base_url = picked("base_url", foreign=("model", "base_url"))
    api_key = picked("api_key")
    if model == "embedded":
        return Endpoint(model="embedded")
    if not base_url and not api_key:
        base_url, api_key = _provider_of_the_environment(str(model), env)
        if api_key or base_url:
            named = "OPENROUTER_API_KEY" if "openrouter" in base_url else "OPENAI_*"
            picked.sources.setdefault("base_url", f"{named} in the environment")
    return Endpoint(
        model=str(model), base_url=str(base_url), api_key=api_key or _key_for(str(base_url), env)
    )


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
    if "openrouter.ai" in base_url:
        return env.get("OPENROUTER_API_KEY", "")
    if base_url.startswith(("http://127.", "http://localhost", "http://[::1]")):
        return ""
    return env.get("OPENAI_API_KEY", "")


def _entries(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = document.get("fallback_providers") or []
    return [entry for entry in entries if isinstance(entry, Mapping)] if entries else []


def _fallback(entry: Mapping[str, Any], env: Mapping[str, str]) -> Endpoint:
    base_url = str(entry.get("base_url") or "")
    if not base_url and entry.get("provider") == "openrouter":
        base_url = OPENROUTER_URL
    named = env.get(str(entry.get("key_env") or ""), "")
    return Endpoint(
        model=str(entry.get("model") or ""),
        base_url=base_url,
        api_key=named or _key_for(base_url, env),
    )


def _dig(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:  # noqa: ANN401 - any YAML value
    value: Any = document if path else None
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise ConfigError(message) from error
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        message = f"{path} is not valid YAML: {where}"
        raise ConfigError(message) from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        message = f"{path} should hold keys and values at its top level"
        raise ConfigError(message)
    return document
