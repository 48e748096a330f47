"""Settings from all sources, with the source of each value.

Order of precedence: the caller's arguments (a magic option, then `%config`), `HERMES_NB_*`
variables, the `hermes_nb:` key in `config.yaml`, Hermes Agent's own keys in that file, the provider
variables of the environment. The working directory is not a source: a cloned repository must not be
able to redirect the user's API key.
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
    """Settings of the curated memory."""

    enabled: bool = True
    """Whether the agent has a memory (MEMORY.md)."""
    user_profile: bool = True
    """Whether the agent has a user profile (USER.md)."""
    write_approval: bool = False
    """Whether every write requires the user's approval."""
    provider: str = ""
    """The external memory service used in addition, "" for none."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """The provider's own settings from `memory.NAME`; its key is `api_key`."""
    nudge: int = 10
    """User turns between two reviews of what to remember, 0 for no reviews."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Maximum size in characters by target (`memory`, `user`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings:
    """Settings of the skills."""

    enabled: bool = True
    """Whether the agent has skills."""
    external_dirs: tuple[str, ...] = ()
    """Skill folders in addition to the one in the Hermes directory."""
    index_tokens: int = 2_000
    """Maximum size in tokens of the skills index in the system prompt."""
    disabled: tuple[str, ...] = ()
    """Names of skills that are switched off."""
    nudge: int = 10
    """Tool iterations between two reviews of what to learn, 0 for no reviews."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """When and how a conversation is compressed."""

    enabled: bool = True
    """Whether conversations are compressed automatically."""
    engine: str = "compressor"
    """The name of the context engine."""
    threshold: float = 0.5
    """Share of the context window above which to compress."""
    max_prompt_tokens: int = 64_000
    """Upper bound of that threshold in tokens."""
    target_ratio: float = 0.2
    """Share of the threshold that the most recent messages may keep."""
    protect_last: int = 20
    """Number of most recent messages that are not compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSettings:
    """Settings of child agents.

    In config.yaml the numbers are called `max_concurrent_children`, `max_iterations` and
    `child_timeout_seconds`.
    """

    enabled: bool = True
    """Whether the agent may start child agents."""
    side_by_side: int = 3
    """Maximum number of children that run at the same time."""
    max_requests: int = 15
    """Maximum number of model requests of each child."""
    seconds: float = 600.0
    """Time limit of each child in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The sandbox of shell commands."""

    required: Literal["", "landlock", "bubblewrap"] = ""
    """The weakest sandbox that is accepted, "" to run commands without one too."""
    use: Literal["auto", "off"] = "auto"
    """`off` runs every command unsandboxed, so all but known harmless ones require approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Settings of the toolset `web`."""

    search_url: str = ""
    """The search engine's URL with a `{query}` placeholder, "" for no search."""
    private: tuple[str, ...] = ()
    """Hosts whose pages may be read although their address is not public."""
    max_bytes: int = 5_000_000
    """Maximum size of a page in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Spending limits in US dollars and in tokens (prompts and answers together).

    In config.yaml they are called `cost`, `tokens`, `notebook_cost` and `notebook_tokens`.
    """

    session: Limits = field(default_factory=Limits)
    """Limits of one session, including its reviews."""
    notebook: Limits = field(default_factory=Limits)
    """Limits of all sessions of a notebook together."""

    def without_cost(self) -> BudgetSettings:
        """Return only the token limits, for a model that is free of charge."""
        return BudgetSettings(
            session=Limits(tokens=self.session.tokens), notebook=Limits(tokens=self.notebook.tokens)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """The MCP servers in config.yaml."""

    servers: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """Each server's entry in config.yaml, by name, not validated."""
    allow: tuple[str, ...] = ()
    """Servers, and tools as `server/tool`, that need no approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """Settings of OpenTelemetry spans."""

    enabled: bool = False
    """Whether spans are created."""
    content: bool = False
    """Whether spans include messages and arguments, with secrets removed."""


ApproveMode = Literal["ask", "edits", "all", "never"]
APPROVE_MODES = get_args(ApproveMode)
"""The values of `ApproveMode`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a session."""

    home: Path
    """The Hermes directory."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    """The conversation's model; empty for an accepted local server, or the embedded model."""
    fallbacks: tuple[Endpoint, ...] = ()
    """Models to try, in this order, when the conversation's model fails."""
    approve: ApproveMode = "ask"
    """The approval mode: `ask` before changes and code, `edits` before code only, `all` almost
    never; `never` allows reading only."""
    max_requests: int = MAX_REQUESTS
    """Maximum number of model requests in a turn."""
    window: int | None = None
    """The model's context window in tokens, None to detect it."""
    local_servers: bool = True
    """Whether to look for model servers on this machine."""
    fetch_weights: bool = False
    """Whether the embedded model's weights may be downloaded."""
    notebook: str = ""
    """The notebook's path for kernels that cannot detect it; "" to detect it."""
    cassette: CassetteMode = "off"
    """Whether model replies are recorded, replayed, either (`auto`), or neither (`off`)."""
    cassette_file: str = ""
    """The path of the cassette, "" for its default path."""
    auxiliary: Mapping[Job, Endpoint] = field(default_factory=dict)
    """Models for work outside the conversation, by job. A missing job is done by the conversation's
    model, except `titles` and `vision`, which are then skipped."""
    composed: Mapping[str, Composed] = field(default_factory=dict)
    """Models that combine several others, by name."""
    system_message: str = ""
    """Text added to every system prompt."""
    ephemeral_system_prompt: str = ""
    """Text sent with every request and never stored."""
    prefill_messages_file: str = ""
    """A file of messages that are sent with every request and never stored."""
    enforce: bool | None = None
    """Whether to tell models to call tools instead of announcing calls; None for by model family.
    """
    cache_ttl: Literal["5m", "1h"] = "5m"
    """How long a provider keeps a prompt cached, if it asks for that."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    """Settings of the curated memory."""
    skills: SkillSettings = field(default_factory=SkillSettings)
    """Settings of the skills."""
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    """Settings of the conversation's compression."""
    delegation: DelegationSettings = field(default_factory=DelegationSettings)
    """Settings of child agents."""
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    """Settings of the sandbox for commands."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    """Spending limits."""
    vision: bool | None = None
    """Whether the model accepts images; None for the default of its family."""
    max_wait: int = MOST_WAITED
    """Maximum seconds of a turn spent waiting for busy providers."""
    keep_days: int = 0
    """Days after their last message that sessions are kept, 0 for ever."""
    session_store: str = ""
    """The URL of the PostgreSQL server for sessions, "" for a file in `home`."""
    store_password: str = field(default="", repr=False)
    """The password of that server."""
    model_options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Additional request fields, by a pattern of the model's name."""
    redact_requests: bool = False
    """Whether secrets are removed from requests."""
    policy: Policy = NONE
    """The administrator's policy."""
    toolsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The user's groups of tools and toolsets, by name. `default` is the group of a turn that names
    no tools."""
    web: WebSettings = field(default_factory=WebSettings)
    """Settings of the toolset `web`."""
    mcp: McpSettings = field(default_factory=McpSettings)
    """The MCP servers."""
    gateway: Mapping[str, Json] = field(default_factory=dict)
    """The `gateway` group of config.yaml, not validated."""
    otel: OtelSettings = field(default_factory=OtelSettings)
    """Settings of OpenTelemetry spans."""
    unknown: tuple[str, ...] = ()
    """A warning for each key in config.yaml that is not a setting."""
    held: Mapping[str, str] = field(default_factory=dict)
    """A message for each setting that the administrator's policy overrides, by name."""
    values: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """Every setting's value, by the name that users give it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each setting that is not a default came from, by name."""

    def insist(self, *names: str) -> None:
        """Raise `ConfigError` if the administrator's policy overrides one of these settings."""
        for name in names:
            if name in self.held:
                raise ConfigError(self.held[name])

    @property
    def beside(self) -> list[tuple[str, Endpoint]]:
        """The models other than the conversation's, each with a label of its use."""
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
    """Return the settings; raise `ConfigError` if a value is invalid.

    `overrides` are the caller's values: `model`, `base_url`, `api_key`, `approve`, `max_requests`,
    `window` and the like, or `group.name`. A missing or None value is not set. `environ` replaces
    the process's environment.
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
        unknown=picked.unknown(),  # keep these last: all other settings have been read by now
        held=picked.held,
        sources=picked.sources,
        values=picked.values,
    )
    _latest[""] = asked, settings
    return settings


_latest: dict[str, tuple[object, Settings]] = {}  # the latest settings and their inputs


def _approve(picked: Picker) -> Mode:
    """Return the approval mode, or the next lower one that the administrator allows."""
    approve = picked("approve", foreign=("approvals", "mode"), default="ask")
    if approve not in APPROVE_MODES:
        approve = _foreign_mode(approve, picked.sources.get("approve", ""))
    if (lower := Guard(approve).held) != approve:
        picked.hold("approve", picked.settled.why("modes", approve))
    return lower


def _foreign_mode(value: object, source: str) -> ApproveMode:
    """Translate Hermes Agent's approval modes; raise `ConfigError` for an unknown mode."""
    if source == "config.yaml":
        return "all" if value in ("off", "none", False) else "ask"
    raise ConfigError(f"approve is {value!r} ({source}); use one of {', '.join(APPROVE_MODES)}")


def _cassette(picked: Picker) -> CassetteMode:
    value = picked("cassette", default="off")
    if value in (False, "off"):  # YAML's reading of a bare off
        return "off"
    picked.settled.check("cassettes", str(value))  # falling back to off would call a real model
    return mode_named(str(value))


def _session_store(picked: Picker) -> str:
    """Return the session store's URL, "" for the file in `home`; reject a password in it."""
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
    """Return the servers in config.yaml only: code in a kernel cannot add one or allow a tool."""
    own = dig(document, ("hermes_nb", "mcp_servers"))
    given = (each for each in (document.get("mcp_servers"), own) if isinstance(each, Mapping))
    found = McpSettings(
        servers={str(name): server for each in given for name, server in each.items()},
        allow=_names(dig(document, ("hermes_nb", "mcp", "allow"))),
    )
    picked.values["mcp_servers"] = ", ".join(found.servers)  # the rest may have keys
    picked.values["mcp.allow"] = ", ".join(found.allow)
    if found.allow and (why := picked.settled.why("always")):
        picked.hold("mcp.allow", why)
        found = replace(found, allow=())
    return found


def _gateway(picked: Picker, document: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the gateway group from config.yaml only; the gateway validates it itself."""
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
    """Return names or paths given as a list or as one comma-separated string."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _on_or_off(value: object) -> bool | None:
    """Return True for on, False for off, and None for "auto" and everything else."""
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    return words.get(str(value).strip().lower())
