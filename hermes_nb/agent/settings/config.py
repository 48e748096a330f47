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
from typing import Literal, get_args
from urllib.parse import urlsplit

from hermes_nb.agent.settings.config_file import dig, read_yaml
from hermes_nb.agent.settings.dotenv import read_dotenv
from hermes_nb.agent.settings.endpoints import (
    Job,
    auxiliary_models,
    composed_models,
    endpoint,
    fallbacks,
    model_options,
)
from hermes_nb.agent.settings.sources import REDACTED, Picker, home_directory, within
from hermes_nb.core.budget import Limits
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.loop import MAX_REQUESTS
from hermes_nb.core.messages import Json
from hermes_nb.core.plugins import plugins
from hermes_nb.core.protocols import MOST_WAITED, STORES
from hermes_nb.models.cassette import Mode as CassetteMode
from hermes_nb.models.cassette import mode_named
from hermes_nb.models.installed import Composed, Endpoint
from hermes_nb.models.profiles import is_address
from hermes_nb.safety.administrator import NONE, Policy, policy
from hermes_nb.safety.guard import Guard, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The curated memory: what is on, whether a write asks, the provider beside it.

    `options` are the provider's own settings, from `memory.NAME`, with its key as `api_key`.
    `nudge` is the number of user turns between two reviews of what to remember, 0 for none.
    `limits` are characters by target.
    """

    enabled: bool = True
    user_profile: bool = True
    write_approval: bool = False
    provider: str = ""
    options: Mapping[str, Json] = field(default_factory=dict)
    nudge: int = 10
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings:
    """Skills: folders beside the home's, tokens of the index, names that are switched off.

    `nudge` is the number of tool iterations between two reviews of what to learn, 0 for none.
    """

    enabled: bool = True
    external_dirs: tuple[str, ...] = ()
    index_tokens: int = 2_000
    disabled: tuple[str, ...] = ()
    nudge: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """When and how a conversation is made shorter.

    `threshold` is a share of the window, `max_prompt_tokens` its bound in tokens; `target_ratio`
    is the share of the threshold that the recent end may keep, `protect_last` so many messages.
    """

    enabled: bool = True
    engine: str = "compressor"
    threshold: float = 0.5
    max_prompt_tokens: int = 64_000
    target_ratio: float = 0.2
    protect_last: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSettings:
    """Child agents: `side_by_side` so many at a time, each with its requests and seconds at most.

    In config.yaml they are `max_concurrent_children`, `max_iterations` and `child_timeout_seconds`.
    """

    enabled: bool = True
    side_by_side: int = 3
    max_requests: int = 15
    seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The sandbox of commands: `required` is the least level that commands run in, "" for none.

    `use` off runs nothing confined: what is not known to be harmless asks.
    """

    required: Literal["", "landlock", "bubblewrap"] = ""
    use: Literal["auto", "off"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """The toolset `web`: an address with `{query}` in it that is searched by, "" for no search.

    Of hosts in `private`, pages are read although they are at no public address; `max_bytes` bounds
    a page.
    """

    search_url: str = ""
    private: tuple[str, ...] = ()
    max_bytes: int = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """What may be spent: by one session with its reviews, and by all the sessions of a notebook.

    In config.yaml they are `cost`, `tokens`, `notebook_cost` and `notebook_tokens`, in US dollars
    and in tokens of prompts and answers.
    """

    session: Limits = field(default_factory=Limits)
    notebook: Limits = field(default_factory=Limits)

    def without_cost(self) -> BudgetSettings:
        """Return the limits in tokens alone, for a model that costs nothing."""
        return BudgetSettings(
            session=Limits(tokens=self.session.tokens), notebook=Limits(tokens=self.notebook.tokens)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """MCP servers as they stand in config.yaml; `allow` are those, and `server/tool`, unasked."""

    servers: Mapping[str, Json] = field(default_factory=dict, repr=False)
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """Spans for OpenTelemetry; `content` puts words and arguments in, without secrets."""

    enabled: bool = False
    content: bool = False


ApproveMode = Literal["ask", "edits", "all", "never"]
APPROVE_MODES = get_args(ApproveMode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a session runs with.

    An empty endpoint means: a local server that was accepted, else the embedded model. `notebook`
    is the path that the user named, where finding it out would fail. `cassette` is what is done
    with model replies (record, replay, auto, off), `cassette_file` where, "" for its usual place.
    `auxiliary` has the models for work beside the conversation; a job that is not there is done by
    the conversation's own, or, as titles and vision are, not at all. `composed` are models that are
    made of others, by name. `system_message` joins every prompt; the ephemeral one and the messages
    of `prefill_messages_file` go with every request and are stored nowhere. `enforce` tells models
    to call tools instead of announcing it, None decides by their family. `cache_ttl` is how long a
    provider that asks for it keeps a prompt cached. `vision` says whether the model takes pictures,
    None is what is known of its family. `max_wait` is how many seconds of a turn may be spent on
    waiting for providers, `keep_days` how long sessions are kept after their last message, 0 for
    ever. `session_store` is the address of a PostgreSQL server that has them, "" for the home's own
    file. `model_options` has further fields of requests, by a pattern of the model's name;
    `redact_requests` keeps secrets out of what is sent. `policy` is the administrator's. `toolsets`
    are names of tools and toolsets by a name of the user's; `default` is what a turn has that names
    none. `gateway` is that group as it stands. `unknown` has a line for each key that nothing
    reads, `held` one for each setting that the administrator's policy has the better of, by its
    name. `sources` says for every setting that is not a default where it came from, and `values`
    has them all by the user's names.
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
    cassette: CassetteMode = "off"
    cassette_file: str = ""
    auxiliary: Mapping[Job, Endpoint] = field(default_factory=dict)
    composed: Mapping[str, Composed] = field(default_factory=dict)
    system_message: str = ""
    ephemeral_system_prompt: str = ""
    prefill_messages_file: str = ""
    enforce: bool | None = None
    cache_ttl: Literal["5m", "1h"] = "5m"
    memory: MemorySettings = field(default_factory=MemorySettings)
    skills: SkillSettings = field(default_factory=SkillSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    delegation: DelegationSettings = field(default_factory=DelegationSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    vision: bool | None = None
    max_wait: int = MOST_WAITED
    keep_days: int = 0
    session_store: str = ""
    store_password: str = field(default="", repr=False)
    model_options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    redact_requests: bool = False
    policy: Policy = NONE
    toolsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    web: WebSettings = field(default_factory=WebSettings)
    mcp: McpSettings = field(default_factory=McpSettings)
    gateway: Mapping[str, Json] = field(default_factory=dict)
    otel: OtelSettings = field(default_factory=OtelSettings)
    unknown: tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict)

    def insist(self, *names: str) -> None:
        """Raise `ConfigError` where one of these, which the user asks for now, does not count."""
        for name in names:
            if name in self.held:
                raise ConfigError(self.held[name])

    @property
    def beside(self) -> list[tuple[str, Endpoint]]:
        """The models that are named beside the conversation's own, each with what it is for."""
        found = [("fallback", end) for end in self.fallbacks]
        uses: dict[Endpoint, list[str]] = {}
        for job, end in self.auxiliary.items():
            uses.setdefault(end, []).append(job)
        for name, composed in self.composed.items():
            for each in dict.fromkeys(composed.asked):
                uses.setdefault(each, []).append(name)
        return found + [(f"for {', '.join(names)}", end) for end, names in uses.items()]


def load_settings(
    *,
    home: str | Path | None = None,
    overrides: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings; raise `ConfigError` for a value that cannot be used.

    `overrides` holds what the caller says: `model`, `base_url`, `api_key`, `approve`,
    `max_requests`, `window` and the like, or `group.name`; each left out or None when not given.
    """
    folder = home_directory(home)
    env = {**read_dotenv(folder), **(os.environ if environ is None else environ)}
    document = read_yaml(folder / "config.yaml")
    asked = folder, env, document, {**(overrides or {})}, policy()
    known, latest = _latest.get("", (None, None))
    if latest is not None and known == asked:
        return latest
    picked = Picker(asked[3], env, document, asked[4])
    own = endpoint(picked, env)
    settings = Settings(
        home=folder,
        endpoint=own,
        fallbacks=fallbacks(document, env),
        approve=within(_approve(picked)),
        max_requests=picked.number("max_requests", ("agent", "max_turns"), MAX_REQUESTS) or 1,
        window=picked.number("window", ("model", "context_length"), None),
        local_servers=picked.flag("local_servers", default=True),
        fetch_weights=picked.flag("fetch_weights", default=False),
        notebook=str(picked("notebook")),
        cassette=_cassette(picked),
        cassette_file=str(picked("cassette_file")),
        auxiliary=auxiliary_models(picked, own, env),
        composed=composed_models(picked, own, env),
        system_message=str(picked.at("agent", "system_prompt", default="")),
        ephemeral_system_prompt=str(picked.at("agent", "ephemeral_system_prompt", default="")),
        prefill_messages_file=str(picked.at("agent", "prefill_messages_file", default="")),
        enforce=_on_or_off(picked.at("agent", "tool_use_enforcement", default="auto")),
        cache_ttl="1h" if picked.at("prompt_caching", "cache_ttl", default="5m") == "1h" else "5m",
        memory=_memory(picked, env),
        skills=_skills(picked),
        compression=_compression(picked),
        delegation=_delegation(picked),
        sandbox=_sandbox(picked),
        budget=_budget(picked),
        vision=_on_or_off(picked("vision", default="auto")),
        model_options=model_options(picked),
        mcp=_mcp(picked, document),
        gateway=_gateway(picked, document),
        redact_requests=picked.flag("redact_requests", default=False) or REDACTED,
        toolsets=_toolsets(picked),
        web=_web(picked),
        otel=OtelSettings(
            enabled=picked.switch("otel", "enabled", default=False),
            content=picked.switch("otel", "content", default=False),
        ),
        max_wait=picked.number("max_wait", (), MOST_WAITED) or MOST_WAITED,
        keep_days=picked.whole("store", "keep_days", 0),
        session_store=_session_store(picked),
        store_password=env.get(str(picked.at("store", "key_env", default="PGPASSWORD")), ""),
        policy=asked[4],
        unknown=picked.unknown(),  # and these, when all has been picked
        held=picked.held,
        sources=picked.sources,
        values=picked.values,
    )
    _latest[""] = asked, settings
    return settings


_latest: dict[str, tuple[object, Settings]] = {}  # the last ones, with what they were made of


def _approve(picked: Picker) -> Mode:
    """Return the mode that is set, or the next lower one that the administrator allows."""
    approve = picked("approve", foreign=("approvals", "mode"), default="ask")
    if approve not in APPROVE_MODES:
        approve = _foreign_mode(approve, picked.sources.get("approve", ""))
    if (lower := Guard(approve).held) != approve:
        picked.hold("approve", picked.settled.why("modes", approve))
    return lower


def _foreign_mode(value: object, source: str) -> ApproveMode:
    """Translate Hermes Agent's approval modes; refuse what is neither its nor ours."""
    if source == "config.yaml":
        return "all" if value in ("off", "none", False) else "ask"
    raise ConfigError(f"approve is {value!r} ({source}); use one of {', '.join(APPROVE_MODES)}")


def _cassette(picked: Picker) -> CassetteMode:
    value = picked("cassette", default="off")
    if value in (False, "off"):  # YAML's reading of a bare off
        return "off"
    picked.settled.check("cassettes", str(value))  # off would ask a model that nobody wanted asked
    return mode_named(str(value))


def _session_store(picked: Picker) -> str:
    """Return the address of a store, "" for the home's own file; it has no password in it."""
    url = str(picked("session_store", default=""))
    parts = urlsplit(url)
    if url and not plugins(STORES, parts.scheme):
        known = " or ".join(f"{point.name}://" for point in plugins(STORES)) or "nothing"
        raise ConfigError(f"session_store begins with {parts.scheme}:; expected {known}")
    if parts.password or "password=" in parts.query:
        picked.values["session_store"] = ""
        message = "session_store has a password in it: set PGPASSWORD in .env, or use ~/.pgpass"
        raise ConfigError(message)
    return url


def _memory(picked: Picker, env: Mapping[str, str]) -> MemorySettings:
    provider = str(picked.at("memory", "provider", default=""))
    if provider and (why := picked.settled.why("memory_services", provider)):
        picked.hold("memory.provider", why)
        provider = ""
    given = picked.at("memory", provider, default={}) if provider else {}
    options = dict(given) if isinstance(given, Mapping) else {}
    named = str(options.get("key_env") or f"{provider}_API_KEY".upper().replace("-", "_"))
    if provider and env.get(named):
        options["api_key"] = env[named]
    return MemorySettings(
        enabled=picked.switch("memory", "memory_enabled", default=True),
        user_profile=picked.switch("memory", "user_profile_enabled", default=True),
        write_approval=picked.switch("memory", "write_approval", default=False),
        provider=provider,
        options=options,
        nudge=picked.whole("memory", "nudge_interval", 10),
        limits={
            "memory": picked.whole("memory", "memory_char_limit", 2_200, least=1),
            "user": picked.whole("memory", "user_char_limit", 1_375, least=1),
        },
    )


def _skills(picked: Picker) -> SkillSettings:
    return SkillSettings(
        enabled=picked.switch("skills", "enabled", default=True),
        external_dirs=_names(picked.at("skills", "external_dirs", default=())),
        index_tokens=picked.whole("skills", "index_tokens", 2_000, least=100),
        disabled=_names(picked.at("skills", "disabled", default=())),
        nudge=picked.whole("skills", "creation_nudge_interval", 10),
    )


def _compression(picked: Picker) -> CompressionSettings:
    return CompressionSettings(
        enabled=picked.switch("compression", "enabled", default=True),
        engine=str(picked.at("context", "engine", default="compressor")),
        threshold=picked.share("compression", "threshold", 0.5, least=0.05, most=0.95),
        max_prompt_tokens=picked.whole("compression", "max_prompt_tokens", 64_000, least=2_000),
        target_ratio=picked.share("compression", "target_ratio", 0.2, least=0.1, most=0.8),
        protect_last=picked.whole("compression", "protect_last_n", 20, least=1),
    )


def _delegation(picked: Picker) -> DelegationSettings:
    return DelegationSettings(
        enabled=picked.switch("delegation", "enabled", default=True),
        side_by_side=picked.whole("delegation", "max_concurrent_children", 3, least=1),
        max_requests=picked.whole("delegation", "max_iterations", MAX_REQUESTS, least=1),
        seconds=picked.whole("delegation", "child_timeout_seconds", 600, least=1),
    )


def _mcp(picked: Picker, document: Mapping[str, Json]) -> McpSettings:
    """Return what config.yaml alone says: no code in a kernel adds a server or allows a tool."""
    own = dig(document, ("hermes_nb", "mcp_servers"))
    given = (each for each in (document.get("mcp_servers"), own) if isinstance(each, Mapping))
    found = McpSettings(
        servers={str(name): server for each in given for name, server in each.items()},
        allow=_names(dig(document, ("hermes_nb", "mcp", "allow"))),
    )
    picked.values["mcp_servers"] = ", ".join(found.servers)  # whose environment may have keys
    picked.values["mcp.allow"] = ", ".join(found.allow)
    if found.allow and (why := picked.settled.why("always")):
        picked.hold("mcp.allow", why)
        found = replace(found, allow=())
    return found


def _gateway(picked: Picker, document: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return what config.yaml alone says of the gateway, which reads it itself."""
    given = (dig(document, ("gateway",)), dig(document, ("hermes_nb", "gateway")))
    groups = (each for each in given if isinstance(each, Mapping))
    found = {str(key): value for group in groups for key, value in group.items()}
    picked.values["gateway"] = ", ".join(found)
    return found


def _sandbox(picked: Picker) -> SandboxSettings:
    required = picked.at("sandbox", "required", default="")
    if required not in ("", "landlock", "bubblewrap"):
        raise ConfigError(f"sandbox.required is {required!r}; use landlock or bubblewrap")
    use = picked.at("sandbox", "use", default="auto")
    on = _on_or_off(use) is not False
    if required and not on:
        message = f"sandbox.required is {required!r} but sandbox.use is off; change one of them"
        raise ConfigError(message)
    return SandboxSettings(required=required, use="auto" if on else "off")


def _budget(picked: Picker) -> BudgetSettings:
    def limits(prefix: str) -> Limits:
        tokens = picked.limit("budget", f"{prefix}tokens")
        return Limits(
            cost=picked.limit("budget", f"{prefix}cost"),
            tokens=None if tokens is None else int(tokens),
        )

    return BudgetSettings(session=limits(""), notebook=limits("notebook_"))


def _toolsets(picked: Picker) -> Mapping[str, tuple[str, ...]]:
    given = picked("toolsets", default={})
    if not isinstance(given, Mapping):
        raise ConfigError("toolsets has a list of tools for each name: {default: [default, web]}")
    return {str(name): _names(members) for name, members in given.items()}


def _web(picked: Picker) -> WebSettings:
    search = str(picked.at("web", "search_url", default=""))
    if search and ("{query}" not in search or not is_address(search)):
        message = (
            "web.search_url is an address with {query} in it, as https://HOST/search?q={query}"
        )
        raise ConfigError(message)
    return WebSettings(
        search_url=search,
        private=_names(picked.at("web", "private", default=())),
        max_bytes=picked.whole("web", "max_bytes", 5_000_000, least=1_000),
    )


def _names(value: object) -> tuple[str, ...]:
    """Return a list of names or paths that may have been written as one."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _on_or_off(value: object) -> bool | None:
    """Return what is on or off; None for "auto" and anything else."""
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    return words.get(str(value).strip().lower())
