"""Known facts about models, addresses and prices; `profiles.toml` has the tables of families.

Unknown values are None: a context window is learnt from the first overflow error, and an unknown
price is never 0. Prices come from the package `genai-prices` (the extra `[prices]`) as of its
installation: only its data file is read, and its updater is never started. Without the package,
`prices.toml` has the prices of well-known models. A price belongs to a model *at an address*: the
same model on this machine has none.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import sys
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from hermes_nb.core.messages import Json, Reply, Usage
from hermes_nb.core.protocols import ChatModel, Traits

OPENAI = "https://api.openai.com/v1"
ANTHROPIC_VERSION = "2023-06-01"
"""Anthropic API version, a header of every request."""


def is_loopback(host: str) -> bool:
    """Return whether a URL's host is this machine.

    The only name accepted is `localhost`: `127.evil.example` merely looks like an IP address.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(url: str) -> bool:
    """Return whether a text is a valid http(s) server URL."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        return known and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # an invalid port, or unbalanced brackets
        return False


StrategyName = Literal["structured", "text"]
EchoPolicy = Literal["never", "turn", "always"]
CachingStyle = Literal["prefix", "system_and_3"]
EffortStyle = Literal["reasoning_effort", "reasoning", "thinking", "adaptive"]
WireName = Literal["chat", "messages", "responses"]
"""A protocol: OpenAI's chat.completions or Responses, or Anthropic's Messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How to communicate with one model at one provider."""

    wire: WireName = "chat"
    """Protocol to use."""
    window: int | None = None
    """Context window in tokens; None if unknown."""
    strategy: StrategyName = "structured"
    """How tools are called: through fields of the API or in the text."""
    tools: bool = True
    """Whether the API accepts tools."""
    echo: tuple[str, ...] = ()
    """Assistant message fields containing reasoning that are sent back to the provider."""
    echo_policy: EchoPolicy = "never"
    """When to send them back: `turn` means only after the last user message."""
    caching: CachingStyle = "prefix"
    """`prefix` needs stable bytes only; `system_and_3` needs breakpoints."""
    max_tokens: str = "max_tokens"
    """Name of the request field for the maximum answer length."""
    stream_usage: bool = True
    """Whether to request token usage in the stream."""
    strict: bool = False
    """Whether the model's chat template requires that user and assistant alternate."""
    short_ids: bool = False
    """Whether call ids must have exactly nine letters and digits."""
    call_extras: bool = False
    """Whether to send the provider's own data about calls back to it."""
    empty_content: str | None = None
    """Content for an assistant message with calls and no text."""
    vision: bool = False
    """Whether the model is known to accept images."""
    effort: EffortStyle = "reasoning_effort"
    """How to request a reasoning effort. `thinking` is Anthropic's token budget, for Claude up to
    4.5; with `adaptive`, later ones decide for themselves."""
    reasons: bool = False
    """Whether the model is known to reason."""
    longest: int | None = None
    """Maximum tokens in an answer; None if unknown."""


EMBEDDED = "qwen2.5-coder-0.5b (embedded)"
"""Name of the built-in model, including when it is replayed."""
_TRAITS = {EMBEDDED: Traits(small=True, learns=False, local=True)}


def traits_of(model: ChatModel) -> Traits:
    """Return a model's own traits, or the traits known for its name.

    A recorded model is known by its name alone, both while recording and in a replay, because both
    must send the same prompts.
    """
    own = getattr(model, "traits", None)
    return own if isinstance(own, Traits) else traits_named(model.name)


def traits_named(name: str) -> Traits:
    """Return the traits known for a model name."""
    return _TRAITS.get(name, Traits())


@cache
def _known() -> dict[str, Json]:
    text = Path(__file__).with_name("profiles.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def profile_for(name: str, base_url: str | None = None) -> Profile:
    """Return the profile of the model `name` at `base_url` (None for OpenAI)."""
    known, family = _known(), name.lower().replace("_", "-").replace(" ", "-")
    host = (urlsplit(base_url or OPENAI).hostname or "").lower()
    reasoning = _longest(family, known["reasoning"]) or {"echo": [], "policy": "never"}
    profile = Profile(
        window=_longest(family, known["windows"]),
        strategy="text" if re.search(known["text"], family) else "structured",
        echo=tuple(reasoning["echo"]),
        echo_policy=reasoning["policy"],
        vision=bool(re.search(known["sees"], family) or _longest(family, known["vision"])),
        reasons=bool(re.search(known["reasons"], family)),
        strict=bool(re.search(known["strict"], family)),
        longest=_longest(family, known["answers"]),
    )
    return _for_provider(host, family, profile)


def with_wire(profile: Profile, wire: WireName, name: str) -> Profile:
    """Return the profile of the model `name` for a protocol other than the provider's usual one."""
    match wire:
        case "chat":
            return replace(profile, wire=wire)
        case "responses":
            return replace(profile, wire=wire, max_tokens="max_output_tokens")
        case "messages":
            decides = "claude" in name.lower() and not re.search(_known()["budgeted"], name.lower())
            effort: EffortStyle = "adaptive" if decides else "thinking"
            caching: CachingStyle = "system_and_3"
            return replace(
                profile, wire=wire, max_tokens="max_tokens", caching=caching, effort=effort
            )


BUDGETS = {"low": 2_048, "medium": 8_192, "high": 24_576}
"""Anthropic's thinking budget in tokens by effort; `ANSWER` tokens are added for the answer."""
ANSWER = 8_192


def effort_fields(profile: Profile, effort: str) -> dict[str, object]:
    """Return the request fields for a reasoning effort; {} for ""."""
    if not effort:
        return {}
    match profile.effort:
        case "reasoning_effort":
            return {"reasoning_effort": effort}
        case "reasoning":
            return {"reasoning": {"effort": effort}}
        case "thinking":
            most = min(BUDGETS[effort] + ANSWER, profile.longest or sys.maxsize)
            budget = min(BUDGETS[effort], most * 7 // 8)  # the answer needs tokens, too
            return {
                "thinking": {"type": "enabled", "budget_tokens": budget},
                "max_tokens": most,
            }
        case "adaptive":
            # Without `display`, some models return reasoning without its text.
            thinking = {"type": "adaptive", "display": "summarized"}
            return {"thinking": thinking, "output_config": {"effort": effort}}


def seeing(limit: int = 6) -> tuple[str, ...]:
    """Return the names of some families that accept images, best known first."""
    known = ("claude", "gpt-5", "gemini", "gpt-4o", "gemma-3", "pixtral", "llava")
    return tuple(name for name in known if _known()["vision"].get(name))[:limit]


def _for_provider(host: str, family: str, profile: Profile) -> Profile:
    """Return the profile adjusted to the provider at `host`."""
    claude = "claude" in family
    if host.endswith("openrouter.ai"):
        # OpenRouter translates for every family, and signs reasoning in its own format.
        caching: CachingStyle = "system_and_3" if claude else "prefix"
        details = ("reasoning_details",)
        return replace(
            profile, echo=details, echo_policy="always", caching=caching, effort="reasoning"
        )
    if host.endswith("anthropic.com"):
        return with_wire(profile, "messages", family)
    if host.endswith("openai.com"):
        if re.search(_known()["responses"], family):
            return with_wire(profile, "responses", family)
        return replace(profile, max_tokens="max_completion_tokens")
    if host.endswith("googleapis.com"):  # Gemini signs its calls
        return replace(profile, call_extras=True)
    if host.endswith("mistral.ai"):
        return replace(profile, short_ids=True, stream_usage=False)
    return profile


def _longest(family: str, table: Mapping[str, Json]) -> Json:
    """Return the value of the longest key that is a prefix of a word in the name."""
    keys = [key for key in table if re.search(rf"(?<![a-z0-9]){re.escape(key)}", family)]
    return table[max(keys, key=len)] if keys else None


_DATED = re.compile(r"-(?:\d{4}-?\d\d-?\d\d|latest)$")
"""A date or `latest` at the end of a model's name."""
SHORT = 1_000
"""Prompt length in tokens that every provider charges at its lowest tier."""


def price(usage: Usage, model: str, base_url: str = "", *, ttl: str = "5m") -> float | None:
    """Return a request's cost in US dollars, or None if unknown.

    Args:
        usage: Tokens of the request.
        model: Name of the model.
        base_url: Where the request was sent; "" for OpenAI.
        ttl: Lifetime of cache entries, which affects the price of writing them.
    """
    counts = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cached,
        "cache_write_tokens": usage.written,
        "cache_write_1h_tokens": usage.written if ttl == "1h" else 0,
    }
    return _calculated({name: count for name, count in counts.items() if count}, model, base_url)


def rates(model: str, base_url: str = "") -> tuple[float, float] | None:
    """Return a model's prices in dollars per million prompt and answer tokens, or None if unknown.

    These are the prices for short prompts; some providers charge more for long ones.
    """
    sent = _calculated({"input_tokens": SHORT}, model, base_url)
    said = _calculated({"output_tokens": SHORT}, model, base_url)
    if sent is None or said is None:
        return None
    return round(sent * 1e6 / SHORT, 6), round(said * 1e6 / SHORT, 6)


@cache
def prices_installed() -> bool:
    """Return whether the package with prices is installed, without importing it."""
    return importlib.util.find_spec("genai_prices") is not None


def priced(reply: Reply, name: str, base_url: str = "", *, ttl: str = "5m") -> Reply:
    """Return a reply with its cost, unless the provider has reported it.

    The price is that of the model that answered or, if unknown, of the model `name` that was asked.
    """
    if reply.usage.cost is not None:
        return reply
    costs = (price(reply.usage, each, base_url, ttl=ttl) for each in (reply.model, name) if each)
    cost = next((cost for cost in costs if cost is not None), None)
    return replace(reply, usage=replace(reply.usage, cost=cost))


@cache
def warm_prices() -> None:
    """Import the prices in a separate thread, since that takes about 0.3 s."""
    if prices_installed():
        read = partial(importlib.import_module, "genai_prices")
        threading.Thread(target=read, name="hermes-prices", daemon=True).start()


def prices_as_of() -> str:
    """Return the source and date of the prices."""
    if prices_installed():
        return f"genai-prices {version('genai-prices')}"
    return str(_table()["dated"])


def _calculated(counts: dict[str, int], model: str, base_url: str) -> float | None:
    if not counts:
        return None
    if not prices_installed():
        return _listed(counts, model.lower(), base_url)
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    try:
        found = calc_price(Tokens(**counts), model, provider_api_url=base_url or OPENAI)
    except (LookupError, ValueError):  # no price for the model, address or kind of token
        return None
    total = float(found.total_price)
    return total if total > 0 else None


@cache
def _table() -> dict[str, Json]:
    return tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))


def _listed(counts: Mapping[str, int], model: str, base_url: str) -> float | None:
    """Return the cost according to `prices.toml`, or None if the model is not listed."""
    table = _table()
    try:
        host = (urlsplit(base_url or OPENAI).hostname or "").lower()
    except ValueError:
        return None
    site = next((site for site in table["models"] if f".{host}".endswith(f".{site}")), "")
    known = table["models"].get(site, {})
    name = model if model in known else _DATED.sub("", model)
    sent, said = (counts.get(f"{each}_tokens", 0) for each in ("input", "output"))
    if name not in known or sent > table["up_to"].get(name, sent):
        return None
    fresh, answer, again = known[name]
    cached, written, hour = (
        counts.get(f"cache_{each}_tokens", 0) for each in ("read", "write", "write_1h")
    )
    if cached + written > sent:
        return None
    short, long = table["written"].get(site, (1.0, 1.0))
    parts = (
        (sent - cached - written, fresh),
        (cached, again),
        (written - hour, fresh * short),
        (hour, fresh * long),
        (said, answer),
    )
    return sum(count * rate for count, rate in parts) / 1e6 or None
