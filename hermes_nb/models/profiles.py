"""What is known of models, addresses and prices; `profiles.toml` has the tables of families.

What is not known is None: a window is learnt from the first overflow error, a price is never 0.
Prices are those of the package `genai-prices` (the extra `[prices]`), as they were when it was
installed: its data file alone is read, and its updater is never started. Without it `prices.toml`
has those of well-known models. A price is looked up for a model *at an address*: the same name on
this machine has none.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
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


def is_loopback(host: str) -> bool:
    """Say whether a host, as a URL names it, is this machine and no other.

    A name counts if it is `localhost`: `127.evil.example` only looks like a number.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(url: str) -> bool:
    """Say whether a text can be the address of a server at all."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        return known and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # a port that is none, brackets that do not close
        return False


StrategyName = Literal["structured", "text"]
EchoPolicy = Literal["never", "turn", "always"]
CachingStyle = Literal["prefix", "system_and_3"]
EffortStyle = Literal["reasoning_effort", "reasoning", "thinking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How to speak with one model at one provider.

    `window` is the context window in tokens. `echo` names the assistant fields that go back on the
    wire, `echo_policy` when: `turn` means only behind the last user message. `caching` is `prefix`
    where byte stability is all that is needed. `stream_usage` says whether to ask for usage in the
    stream. `short_ids` asks for call ids of nine letters and digits. `empty_content` is sent for
    an assistant message that has calls and no text. `effort` is the field that says how much to
    reason, or Anthropic's budget of tokens for it. `vision` says that it is known to see images.
    """

    window: int | None = None
    strategy: StrategyName = "structured"
    tools: bool = True
    echo: tuple[str, ...] = ()
    echo_policy: EchoPolicy = "never"
    caching: CachingStyle = "prefix"
    max_tokens: str = "max_tokens"
    stream_usage: bool = True
    short_ids: bool = False
    empty_content: str | None = None
    vision: bool = False
    effort: EffortStyle = "reasoning_effort"


EMBEDDED = "qwen2.5-coder-0.5b (embedded)"
"""What the built-in model, and a replay of it, goes by."""
_TRAITS = {EMBEDDED: Traits(small=True, learns=False, local=True)}


def traits_of(model: ChatModel) -> Traits:
    """Return what a model says of itself, or what is known of its name.

    A recording of a model is known by its name alone, while it is made as well as in a replay: both
    have to send the same prompts.
    """
    own = getattr(model, "traits", None)
    return own if isinstance(own, Traits) else traits_named(model.name)


def traits_named(name: str) -> Traits:
    """Return what is known of a model by its name."""
    return _TRAITS.get(name, Traits())


@cache
def _known() -> dict[str, Json]:
    text = Path(__file__).with_name("profiles.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def profile_for(name: str, base_url: str | None = None) -> Profile:
    """Return what is known of the model `name` at `base_url` (None is OpenAI itself)."""
    known, family = _known(), name.lower().replace("_", "-").replace(" ", "-")
    host = (urlsplit(base_url or OPENAI).hostname or "").lower()
    reasoning = _longest(family, known["reasoning"]) or {"echo": [], "policy": "never"}
    profile = Profile(
        window=_longest(family, known["windows"]),
        strategy="text" if re.search(known["text"], family) else "structured",
        echo=tuple(reasoning["echo"]),
        echo_policy=reasoning["policy"],
        vision=bool(re.search(known["sees"], family) or _longest(family, known["vision"])),
    )
    return _at(host, family, profile)


BUDGETS = {"low": 2_048, "medium": 8_192, "high": 24_576}
"""Tokens of thinking that Anthropic is given for each effort; the answer has its own on top."""
ANSWER = 8_192


def effort_fields(profile: Profile, effort: str) -> dict[str, object]:
    """Return the fields of a request that say how much to reason; none for ""."""
    if not effort:
        return {}
    match profile.effort:
        case "reasoning_effort":
            return {"reasoning_effort": effort}
        case "reasoning":
            return {"reasoning": {"effort": effort}}
        case "thinking":
            budget = BUDGETS[effort]
            thinking = {"type": "enabled", "budget_tokens": budget}
            return {"thinking": thinking, "max_tokens": budget + ANSWER}


def seeing(limit: int = 6) -> tuple[str, ...]:
    """Return names of some families that see pictures, the best known first."""
    known = ("claude", "gpt-5", "gemini", "gpt-4o", "gemma-3", "pixtral", "llava")
    return tuple(name for name in known if _known()["vision"].get(name))[:limit]


def _at(host: str, family: str, profile: Profile) -> Profile:
    """Return the profile with what the provider at `host` does differently."""
    claude = "claude" in family
    if host.endswith("openrouter.ai"):
        # OpenRouter translates for every family, and signs reasoning in a format of its own.
        caching: CachingStyle = "system_and_3" if claude else "prefix"
        details = ("reasoning_details",)
        return replace(
            profile, echo=details, echo_policy="always", caching=caching, effort="reasoning"
        )
    if host.endswith("anthropic.com"):
        return replace(profile, caching="system_and_3", effort="thinking")
    if host.endswith("openai.com"):
        return replace(profile, max_tokens="max_completion_tokens")
    if host.endswith("mistral.ai"):
        return replace(profile, short_ids=True, stream_usage=False)
    return profile


def _longest(family: str, table: Mapping[str, Json]) -> Json:
    """Return the value under the longest key that a word of the name starts with."""
    keys = [key for key in table if re.search(rf"(?<![a-z0-9]){re.escape(key)}", family)]
    return table[max(keys, key=len)] if keys else None


_DATED = re.compile(r"-(?:\d{4}-?\d\d-?\d\d|latest)$")
"""How the name of a version of a model ends."""
SHORT = 1_000
"""Tokens of a prompt that every provider prices at its lowest tier."""


def price(usage: Usage, model: str, base_url: str = "", *, ttl: str = "5m") -> float | None:
    """Return what a request cost in US dollars, None where that is not known.

    `base_url` is where it was sent, "" for OpenAI. `ttl` is how long what was written to the cache
    stays there, which has its price.
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
    """Return a model's dollars a million tokens of prompt and of answer, None if not known.

    Some charge more for long prompts; these are for short ones.
    """
    sent = _calculated({"input_tokens": SHORT}, model, base_url)
    said = _calculated({"output_tokens": SHORT}, model, base_url)
    if sent is None or said is None:
        return None
    return round(sent * 1e6 / SHORT, 6), round(said * 1e6 / SHORT, 6)


@cache
def prices_installed() -> bool:
    """Say whether the package with prices is here; nothing is imported for that."""
    return importlib.util.find_spec("genai_prices") is not None


def priced(reply: Reply, name: str, base_url: str = "", *, ttl: str = "5m") -> Reply:
    """Return a reply that says what it cost, if the provider has not said it itself.

    It is that of the model that answered; `name` is the one that was asked.
    """
    if reply.usage.cost is not None:
        return reply
    costs = (price(reply.usage, each, base_url, ttl=ttl) for each in (reply.model, name) if each)
    cost = next((cost for cost in costs if cost is not None), None)
    return replace(reply, usage=replace(reply.usage, cost=cost))


@cache
def warm_prices() -> None:
    """Read the prices in a thread of their own: that takes a third of a second."""
    if prices_installed():
        read = partial(importlib.import_module, "genai_prices")
        threading.Thread(target=read, name="hermes-prices", daemon=True).start()


def prices_as_of() -> str:
    """Return whose prices are used, and of when."""
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
    except (LookupError, ValueError):  # a model, an address or a kind of token without a price
        return None
    total = float(found.total_price)
    return total if total > 0 else None


@cache
def _table() -> dict[str, Json]:
    return tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))


def _listed(counts: Mapping[str, int], model: str, base_url: str) -> float | None:
    """Return what tokens cost by our own table, None for what is not in it."""
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
