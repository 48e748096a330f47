"""Settings from all sources, with the source of each value.

Order of precedence: the caller's arguments (a magic option, then `%config`), `HERMES_NB_*`
variables, the `hermes_nb:` key in `config.yaml`, Hermes Agent's own keys in that file, the
environment's provider variables. The working directory is not a source: a cloned repository must
not be able to redirect the user's API key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args
from urllib.parse import urlsplit

from hermes_nb.agent.settings.declare import Setting, declared, names
from hermes_nb.agent.settings.endpoints import (
    Job,
    auxiliary_models,
    composed_models,
    endpoint,
    fallbacks,
    model_options,
)
from hermes_nb.agent.settings.files import read_dotenv, read_yaml
from hermes_nb.agent.settings.sources import REDACTED, Group, Picker, home_directory, within
from hermes_nb.core.budget import Limits
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.loop import MAX_REQUESTS
from hermes_nb.core.messages import Json
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import MOST_WAITED, STORES
from hermes_nb.models.cassette import Mode as CassetteMode
from hermes_nb.models.installed import Composed, Endpoint
from hermes_nb.models.profiles import is_address
from hermes_nb.safety.administrator import NONE, Policy, policy
from hermes_nb.safety.guard import Guard, Mode

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from _typeshed import DataclassInstance

SETTINGS = "hermes_nb.settings"
"""The entry point group for dataclasses with other packages' settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Settings for the curated memory."""

    enabled: Annotated[bool, Setting("memory.memory_enabled")] = True
    """Whether the agent has a memory, `MEMORY.md`: facts about the work."""
    user_profile: Annotated[bool, Setting("memory.user_profile_enabled")] = True
    """Whether the agent has a user profile, `USER.md`: facts about you."""
    write_approval: Annotated[bool, Setting("memory.write_approval")] = False
    """Whether every write requires approval."""
    memory_chars: Annotated[int, Setting("memory.memory_char_limit", least=1)] = 2_200
    """Maximum size of `MEMORY.md` in characters."""
    user_chars: Annotated[int, Setting("memory.user_char_limit", least=1)] = 1_375
    """Maximum size of `USER.md` in characters."""
    nudge: Annotated[int, Setting("memory.nudge_interval")] = 10
    """User turns between two background reviews of memory; 0 turns them off."""
    provider: Annotated[str, Setting("memory.provider")] = ""
    """A memory service from a package, used in addition. Its own settings are in the group
    `memory.NAME`."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """The provider's own settings from `memory.NAME`; its key is `api_key`."""

    @property
    def limits(self) -> Mapping[str, int]:
        """Maximum size in characters by target."""
        return {"memory": self.memory_chars, "user": self.user_chars}


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings:
    """Settings for skills."""

    enabled: Annotated[bool, Setting("skills.enabled")] = True
    """Whether the agent has skills."""
    external_dirs: Annotated[tuple[str, ...], Setting("skills.external_dirs")] = ()
    """Skill folders in addition to the one in the Hermes directory."""
    disabled: Annotated[tuple[str, ...], Setting("skills.disabled")] = ()
    """Names of skills that are switched off."""
    index_tokens: Annotated[int, Setting("skills.index_tokens", least=100)] = 2_000
    """Maximum size in tokens of the list of skills in the system prompt."""
    nudge: Annotated[int, Setting("skills.creation_nudge_interval")] = 10
    """Tool iterations between two background reviews of skills; 0 turns them off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """When and how a conversation is compressed."""

    engine: Annotated[str, Setting("context.engine")] = "compressor"
    """The context engine: `compressor`, `lossless`, or one from a package."""
    enabled: Annotated[bool, Setting("compression.enabled")] = True
    """Whether conversations are compressed automatically; `%hermes compress` always works."""
    threshold: Annotated[float, Setting("compression.threshold", least=0.05, most=0.95)] = 0.5
    """Share of the context window above which to compress."""
    max_prompt_tokens: Annotated[int, Setting("compression.max_prompt_tokens", least=2_000)] = (
        64_000
    )
    """Tokens above which to compress, even if the threshold is higher."""
    target_ratio: Annotated[float, Setting("compression.target_ratio", least=0.1, most=0.8)] = 0.2
    """Share of the threshold that the most recent messages may keep."""
    protect_last: Annotated[int, Setting("compression.protect_last_n", least=1)] = 20
    """Number of most recent messages that are not compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSettings:
    """Settings for child agents."""

    enabled: Annotated[bool, Setting("delegation.enabled")] = True
    """Whether the agent may start child agents."""
    side_by_side: Annotated[int, Setting("delegation.max_concurrent_children", least=1)] = 3
    """Maximum number of children that run at the same time."""
    max_requests: Annotated[int, Setting("delegation.max_iterations", least=1)] = MAX_REQUESTS
    """Maximum number of model requests of each child."""
    seconds: Annotated[int, Setting("delegation.child_timeout_seconds", least=1)] = 600
    """Time limit of each child in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The sandbox for shell commands."""

    required: Annotated[Literal["", "landlock", "bubblewrap"], Setting("sandbox.required")] = ""
    """The weakest sandbox in which commands may run; if it is missing, they do not run."""
    use: Annotated[Literal["auto", "off"], Setting("sandbox.use")] = "auto"
    """`off` runs every command unsandboxed, so all but known harmless ones require approval."""


def _search_url(given: Json) -> str:
    if isinstance(given, str) and "{query}" in given and is_address(given):
        return given
    raise ValueError(_SEARCH_URL)


_SEARCH_URL = "a URL that contains {query}, such as https://HOST/search?q={query}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Settings for the toolset `web`."""

    search_url: Annotated[str, Setting("web.search_url", valid=_SEARCH_URL, read=_search_url)] = ""
    """The search engine that `web_search` uses; without one, the tool is not offered."""
    private: Annotated[tuple[str, ...], Setting("web.private")] = ()
    """Hosts, as `HOST` or `HOST:PORT`, whose pages may be read although they are not public."""
    max_bytes: Annotated[int, Setting("web.max_bytes", least=1_000)] = 5_000_000
    """Maximum size of a page in bytes."""


_ABOVE_0 = "a number above 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Spending limits in US dollars and in tokens (prompts and answers together)."""

    cost: Annotated[float | None, Setting("budget.cost", least=1e-9, valid=_ABOVE_0)] = None
    """Maximum cost of a session in US dollars, including its reviews and summaries."""
    tokens: Annotated[int | None, Setting("budget.tokens", least=1)] = None
    """Maximum number of tokens of a session."""
    notebook_cost: Annotated[
        float | None, Setting("budget.notebook_cost", least=1e-9, valid=_ABOVE_0)
    ] = None
    """Maximum cost of all sessions of a notebook together in US dollars."""
    notebook_tokens: Annotated[int | None, Setting("budget.notebook_tokens", least=1)] = None
    """Maximum number of tokens of all sessions of a notebook together."""

    @property
    def session(self) -> Limits:
        """Limits for one session."""
        return Limits(cost=self.cost, tokens=self.tokens)

    @property
    def notebook(self) -> Limits:
        """Limits for all of a notebook's sessions together."""
        return Limits(cost=self.notebook_cost, tokens=self.notebook_tokens)

    def without_cost(self) -> BudgetSettings:
        """Return only the token limits, for a model that is free of charge."""
        return replace(self, cost=None, notebook_cost=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """The MCP servers in config.yaml."""

    servers: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """Each server's entry in config.yaml, by name, not validated."""
    allow: Annotated[tuple[str, ...], Setting("mcp.allow", file_only=True)] = ()
    """Servers, and tools as `server/tool`, that need no approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """Settings for OpenTelemetry spans."""

    enabled: Annotated[bool, Setting("otel.enabled")] = False
    """Whether spans of turns, requests and calls are created; needs `hermes_nb[otel]`."""
    content: Annotated[bool, Setting("otel.content")] = False
    """Whether spans include prompts, answers and arguments, with secrets removed."""


ApproveMode = Literal["ask", "edits", "all", "never"]
APPROVE_MODES = get_args(ApproveMode)
"""The values of `ApproveMode`."""


def _own_mode(theirs: Json) -> Json:
    """Translate Hermes Agent's approval modes."""
    if theirs in APPROVE_MODES:
        return theirs
    return "all" if theirs in ("off", "none", False) else "ask"


def _families(theirs: Json) -> Json:
    """Translate a list of model families, which only Hermes Agent distinguishes."""
    return "auto" if isinstance(theirs, list) else theirs


def _toolsets(given: Json) -> Mapping[str, tuple[str, ...]]:
    if isinstance(given, Mapping):
        return {str(name): names(members) for name, members in given.items()}
    raise ValueError(_TOOLSETS)


_TOOLSETS = "a list of tools for each name, such as {default: [default, web]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings for a session."""

    home: Path
    """The Hermes directory."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    """The conversation's model; empty for an accepted local server, or the embedded model."""
    fallbacks: tuple[Endpoint, ...] = ()
    """Models to try, in this order, when the conversation's model fails."""
    approve: Annotated[
        ApproveMode, Setting("approve", foreign="approvals.mode", theirs=_own_mode)
    ] = "ask"
    """What runs without approval: only reading (`ask`), also changes to files and cells (`edits`),
    or almost everything (`all`). `never` refuses everything except reading."""
    max_requests: Annotated[int, Setting("max_requests", foreign="agent.max_turns", least=1)] = (
        MAX_REQUESTS
    )
    """Maximum number of model requests in a turn."""
    window: Annotated[int | None, Setting("window", foreign="model.context_length", least=1)] = None
    """The model's context window in tokens; by default it is detected."""
    local_servers: Annotated[bool, Setting("local_servers")] = True
    """Whether to look for model servers on this machine if no model is configured."""
    fetch_weights: Annotated[bool, Setting("fetch_weights")] = False
    """Whether the built-in model's weights (491 MB) may be downloaded without asking."""
    notebook: Annotated[str, Setting("notebook")] = ""
    """The notebook's path, for kernels that cannot detect it."""
    cassette: Annotated[CassetteMode, Setting("cassette")] = "off"
    """Whether model replies are recorded, replayed, either (`auto`), or neither (`off`)."""
    cassette_file: Annotated[str, Setting("cassette_file")] = ""
    """The path of the cassette, if it is not next to the notebook."""
    auxiliary: Mapping[Job, Endpoint] = field(default_factory=dict)
    """Models for work outside the conversation, by job. A missing job is done by the conversation's
    model, except `titles` and `vision`, which are then skipped."""
    composed: Mapping[str, Composed] = field(default_factory=dict)
    """Models that combine several others, by name."""
    system_message: Annotated[str, Setting("agent.system_prompt")] = ""
    """Text added to every system prompt."""
    ephemeral_system_prompt: Annotated[str, Setting("agent.ephemeral_system_prompt")] = ""
    """Text sent with every request after the system prompt, and never stored."""
    prefill_messages_file: Annotated[str, Setting("agent.prefill_messages_file")] = ""
    """A JSON file of messages that are sent with every request and never stored, as a path in the
    Hermes directory."""
    enforce: Annotated[bool | None, Setting("agent.tool_use_enforcement", theirs=_families)] = None
    """Whether to tell models to call tools instead of announcing calls; `auto` decides by the
    model's family."""
    cache_ttl: Annotated[Literal["5m", "1h"], Setting("prompt_caching.cache_ttl")] = "5m"
    """How long a provider caches a prompt, if it lets the client choose."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    """Settings for the curated memory."""
    skills: SkillSettings = field(default_factory=SkillSettings)
    """Settings for skills."""
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    """Settings for the conversation's compression."""
    delegation: DelegationSettings = field(default_factory=DelegationSettings)
    """Settings for child agents."""
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    """Settings for the sandbox for commands."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    """Spending limits."""
    vision: Annotated[bool | None, Setting("vision")] = None
    """Whether the model accepts images; `auto` decides by the model's family."""
    max_wait: Annotated[int, Setting("max_wait", least=1)] = MOST_WAITED
    """Maximum seconds of a turn spent waiting for busy providers."""
    keep_days: Annotated[int, Setting("store.keep_days")] = 0
    """Number of days to keep sessions after their last message; 0 keeps them forever."""
    session_store: Annotated[str, Setting("session_store")] = ""
    """The server for sessions, `postgresql://USER@HOST/DATABASE`; by default they are in a file of
    the Hermes directory."""
    store_key_env: Annotated[str, Setting("store.key_env")] = "PGPASSWORD"
    """The environment variable with the password of that server."""
    store_password: str = field(default="", repr=False)
    """That server's password."""
    model_options: Annotated[
        Mapping[str, Mapping[str, object]],
        Setting("model_options", valid="a group of fields for each model", read=model_options),
    ] = field(default_factory=dict)
    """Additional request fields, by a pattern of the model's name."""
    redact_requests: Annotated[bool, Setting("redact_requests")] = False
    """Whether secrets are removed from requests to models, as they are from stored data."""
    policy: Policy = NONE
    """The administrator's policy."""
    toolsets: Annotated[
        Mapping[str, tuple[str, ...]], Setting("toolsets", valid=_TOOLSETS, read=_toolsets)
    ] = field(default_factory=dict)
    """Your groups of tools and toolsets, by name.

    Turns that don't select any tools use the group `default`.
    """
    web: WebSettings = field(default_factory=WebSettings)
    """Settings for the toolset `web`."""
    mcp: McpSettings = field(default_factory=McpSettings)
    """The MCP servers."""
    gateway: Mapping[str, Json] = field(default_factory=dict)
    """The `gateway` group of config.yaml, not validated."""
    otel: OtelSettings = field(default_factory=OtelSettings)
    """Settings for OpenTelemetry spans."""
    packages: Mapping[type, object] = field(default_factory=dict)
    """Settings from other packages, by the dataclass that declares them; see `of`."""
    unknown: tuple[str, ...] = ()
    """A warning for each key in config.yaml that is not a setting."""
    held: Mapping[str, str] = field(default_factory=dict, compare=False)
    """A message for each setting that the administrator's policy overrides, by name."""
    declared: Mapping[str, Setting] = field(default_factory=dict, repr=False, compare=False)
    """Every setting's declaration, by the name that users know."""
    values: Mapping[str, Json] = field(default_factory=dict, repr=False, compare=False)
    """The value of each setting, as in its source, by name."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each setting that is not a default came from, by name."""

    def of(self, group: type[Group]) -> Group:
        """Return a package's settings by its entry in `hermes_nb.settings`.

        Raises:
            ConfigError: the class is not such an entry, or its package is not installed
        """
        if group not in self.packages:
            message = (
                f"{group.__name__} is not an entry point of the group "
                "`hermes_nb.settings`; install its package"
            )
            raise ConfigError(message)
        return cast("Group", self.packages[group])

    def insist(self, *names: str) -> None:
        """Raise `ConfigError` if the administrator's policy overrides one of these settings."""
        for name in names:
            if name in self.held:
                raise ConfigError(self.held[name])

    @property
    def beside(self) -> list[tuple[str, Endpoint]]:
        """The models other than the conversation's, each with a label for its use."""
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

    `overrides` are the caller's values, such as `model`, `base_url`, `api_key`, `approve`,
    `max_requests`, `window` or `group.name`. A missing or None value is not set. `environ` replaces
    the process's environment.
    """
    folder = home_directory(home)
    env = {**read_dotenv(folder), **(os.environ if environ is None else environ)}
    document = read_yaml(folder / "config.yaml")
    asked = folder, env, document, {**(overrides or {})}, policy(), plugins(SETTINGS)
    known, latest = _latest.get("", (None, None))
    if latest is not None and known == asked:
        return latest
    picked = Picker(asked[3], env, document, asked[4])
    own = endpoint(picked, env)
    read = picked.group(Settings, home=folder, endpoint=own, policy=asked[4])
    _check(picked, read)
    settings = replace(
        read,
        fallbacks=fallbacks(document, env),
        approve=within(_allowed(picked, read.approve)),
        auxiliary=auxiliary_models(picked, own, env),
        composed=composed_models(picked, own, env),
        memory=_memory(picked, read.memory, env),
        mcp=_mcp(picked, read.mcp),
        gateway=picked.merged("gateway"),
        redact_requests=read.redact_requests or REDACTED,
        store_password=env.get(read.store_key_env, ""),
        packages=_packages(picked, asked[5]),
        unknown=picked.unknown(),  # these must stay last: all other settings have been read by then
        held=picked.held,
        declared=picked.declared,
        sources=picked.sources,
        values=picked.values,
    )
    _latest[""] = asked, settings
    return settings


_latest: dict[str, tuple[object, Settings]] = {}  # the latest settings and their inputs


def _allowed(picked: Picker, approve: Mode) -> Mode:
    """Return the approval mode, or the next lower one that the administrator allows."""
    if (lower := Guard(approve).held) != approve:
        picked.hold("approve", picked.settled.why("modes", approve))
    return lower


def _check(picked: Picker, read: Settings) -> None:
    """Raise `ConfigError` for settings that contradict each other or cannot be used."""
    if read.cassette != "off":  # falling back to off would call a real model
        picked.settled.check("cassettes", read.cassette)
    if read.sandbox.required and read.sandbox.use == "off":
        message = f"sandbox.required is {read.sandbox.required!r} but sandbox.use is off"
        raise ConfigError(f"{message}; change one of them")
    url = read.session_store
    try:
        parts = urlsplit(url)
    except ValueError as error:
        message = "session_store is not a URL; expected postgresql://USER@HOST/DATABASE"
        raise ConfigError(message) from error
    if parts.password or "password=" in parts.query:
        picked.values["session_store"] = ""
        message = "session_store contains a password; set PGPASSWORD in .env, or use ~/.pgpass"
        raise ConfigError(message)
    if url and not plugins(STORES, parts.scheme):
        known = " or ".join(f"{point.name}://" for point in plugins(STORES)) or "nothing"
        raise ConfigError(f"session_store begins with {parts.scheme}:; expected {known}")


def _memory(picked: Picker, read: MemorySettings, env: Mapping[str, str]) -> MemorySettings:
    """Return the settings with the provider's own and its key, or without a forbidden provider."""
    provider = read.provider
    if not provider:
        return read
    if why := picked.settled.why("memory_services", provider):
        picked.hold("memory.provider", why)
        return replace(read, provider="")
    given = picked.value(Setting(f"memory.{provider}", kind=Mapping, default={}))
    options = dict(cast("Mapping[str, Json]", given))
    named = str(options.get("key_env") or f"{provider}_API_KEY".upper().replace("-", "_"))
    if env.get(named):
        options["api_key"] = env[named]
    return replace(read, options=options)


def _mcp(picked: Picker, read: McpSettings) -> McpSettings:
    """Return only the servers in config.yaml: kernel code cannot add one or allow a tool."""
    if read.allow and (why := picked.settled.why("always")):
        picked.hold("mcp.allow", why)
        read = replace(read, allow=())
    return replace(read, servers=picked.merged("mcp_servers"))


def _packages(picked: Picker, points: Sequence[EntryPoint]) -> Mapping[type, object]:
    """Return other packages' settings, each under its entry's name in config.yaml."""
    found: dict[type, object] = {}
    for point in points:
        try:
            group = cast("type[DataclassInstance]", loaded(point))
        except ConfigError as error:
            picked.notes.append(str(error))
            continue
        keys = [each.key for each in declared(group).values()]
        if wrong := [key for key in keys if not key.startswith(f"{point.name}.")]:
            message = f"the settings of {point.module} begin with `{point.name}.`"
            raise ConfigError(f"{message}, which {wrong[0]} does not")
        found[group] = picked.group(group)
    return found
