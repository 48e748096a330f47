"""What is known of models, addresses and prices, as data.

Sources: the providers' model pages and API references as of 2026-11. A fact that is not known is
left out: an unknown window is None, and is learnt from the first overflow error; an unknown price
is None, never 0. Prices are those of the package `genai-prices` (the extra `[prices]`), as they
were when it was installed: its data file alone is read, and its updater is never started. A price
is looked up for a model *at an address*: the same name on this machine has none.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from hermes_nb.core.events import Delta
from hermes_nb.core.messages import Reply, Usage
from hermes_nb.core.protocols import ChatModel, Request, body_of

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
Fact = TypeVar("Fact")


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
"""What the embedded model, and a replay of it, goes by."""
WINDOWS: dict[str, int] = {
    "claude": 200_000,
    "claude-sonnet-4-5": 200_000,
    "codestral": 256_000,
    "command-a": 256_000,
    "command-r": 128_000,
    "deepseek": 128_000,
    "deepseek-coder": 16_384,
    "devstral": 131_072,
    "gemini": 1_048_576,
    "gemini-1.5-pro": 2_097_152,
    "gemma": 8_192,
    "gemma-3": 131_072,
    "gemma-3-1b": 32_768,
    "gemma-3n": 32_768,
    "gemma3": 131_072,
    "gemma3:1b": 32_768,
    "glm-4": 131_072,
    "glm-4.5v": 65_536,
    "glm-4.6": 200_000,
    "glm-4.7": 200_000,
    "gpt-3.5": 16_385,
    "gpt-4": 8_192,
    "gpt-4-32k": 32_768,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4.5": 128_000,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "gpt-5-chat": 128_000,
    "gpt-oss": 131_072,
    "granite-3": 131_072,
    "granite-4": 131_072,
    "grok-3": 131_072,
    "grok-4": 256_000,
    "grok-4-fast": 2_000_000,
    "grok-4.1-fast": 2_000_000,
    "grok-4-1-fast": 2_000_000,
    "grok-code-fast": 256_000,
    "hermes-3": 131_072,
    "hermes-4": 131_072,
    "jamba": 256_000,
    "kimi-k2": 131_072,
    "kimi-k2-0905": 262_144,
    "kimi-k2-instruct-0905": 262_144,
    "kimi-k2-thinking": 262_144,
    "kimi-k2-turbo": 262_144,
    "kimi-k2.5": 262_144,
    "llama-2": 4_096,
    "llama-3": 8_192,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "llama-4": 131_072,
    "llama-4-maverick": 1_048_576,
    "llama-4-scout": 10_485_760,
    "llama2": 4_096,
    "llama3": 8_192,
    "llama3.1": 131_072,
    "llama3.2": 131_072,
    "llama3.3": 131_072,
    "magistral": 40_960,
    "minimax-m1": 1_000_000,
    "minimax-m2": 204_800,
    "ministral": 131_072,
    "mistral": 32_768,
    "mistral-large": 131_072,
    "mistral-medium": 131_072,
    "mistral-nemo": 131_072,
    "mistral-small": 131_072,
    "mixtral": 32_768,
    "mixtral-8x22b": 65_536,
    "nemotron": 131_072,
    "nova-lite": 300_000,
    "nova-micro": 128_000,
    "nova-pro": 300_000,
    "o1": 200_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o3": 200_000,
    "o4-mini": 200_000,
    "phi-2": 2_048,
    "phi-3": 4_096,
    "phi-3-mini-128k": 131_072,
    "phi-3.5": 131_072,
    "phi-4": 16_384,
    "phi-4-mini": 131_072,
    "phi3": 131_072,
    "phi4": 16_384,
    "qwen2.5": 32_768,
    "qwen2.5-7b-instruct-1m": 1_010_000,
    "qwen3": 32_768,
    "qwen3-235b-a22b-2507": 262_144,
    "qwen3-30b-a3b-2507": 262_144,
    "qwen3-coder": 262_144,
    "qwen3-coder-plus": 1_000_000,
    "qwen3-max": 262_144,
    "qwen3-next": 262_144,
    "qwq": 32_768,
    "solar-pro": 32_768,
    "sonar": 128_000,
    "sonar-pro": 200_000,
    "yi-large": 32_768,
}
"""Context windows in tokens by family; the longest that a word of the model's name starts with."""

TEXT_FAMILIES = re.compile(r"gemma|(?<!o)llama|(?<![a-z0-9])phi-?\d")
"""Families whose tool calling is text: no, or unreliable, structured calls."""

VISION: dict[str, bool] = {
    "claude": True,
    "claude-2": False,
    "claude-instant": False,
    "claude-v2": False,
    "gemini": True,
    "gemini-1.0": False,
    "gemini-pro": False,
    "gemma-3": True,
    "gemma-3-1b": False,
    "gemma-3-270m": False,
    "gemma-3n": False,
    "gemma3": True,
    "gemma3:1b": False,
    "gemma3:270m": False,
    "gemma3n": False,
    "glm-4.1v": True,
    "glm-4.5v": True,
    "glm-4.6v": True,
    "glm-4v": True,
    "gpt-4-turbo": True,
    "gpt-4-turbo-preview": False,
    "gpt-4.1": True,
    "gpt-4.5": True,
    "gpt-4o": True,
    "gpt-4o-audio": False,
    "gpt-4o-mini-audio": False,
    "gpt-4o-mini-search": False,
    "gpt-4o-search": False,
    "gpt-5": True,
    "grok-4": True,
    "internvl": True,
    "kimi-k2.5": True,
    "llama-4": True,
    "llama4": True,
    "llava": True,
    "bakllava": True,
    "minicpm-v": True,
    "mistral-medium-3": True,
    "mistral-small-3.1": True,
    "mistral-small-3.2": True,
    "nova-lite": True,
    "nova-premier": True,
    "nova-pro": True,
    "o1": True,
    "o1-mini": False,
    "o1-preview": False,
    "o3": True,
    "o3-mini": False,
    "o4-mini": True,
    "pixtral": True,
}
"""Families by whether they take images; one that is not here is taken not to.

A model that is sent a picture it does not see fails with a 400, one that is only told of it can
still ask for numbers. So what is in doubt (search and audio variants, "latest") is left out.
"""

SEES = re.compile(r"(?<![a-z])(?:vision|vl|multimodal)(?![a-z])")
"""Words by which other families name their models that see: qwen2.5-vl, llama-3.2-11b-vision."""

REASONING: dict[str, tuple[tuple[str, ...], EchoPolicy]] = {
    # V3.2 wants its reasoning back inside a turn's tool loop, and ignores or refuses it after.
    "deepseek": (("reasoning_content",), "turn"),
    "deepseek-r1": ((), "never"),
    # Interleaved thinking: the templates keep the reasoning of earlier steps.
    "kimi-k2": (("reasoning_content",), "always"),
    "glm-4": (("reasoning_content",), "always"),
    "glm-5": (("reasoning_content",), "always"),
    "minimax-m": (("reasoning_content",), "always"),
}
"""Families that want reasoning back, in which fields and when; of no use to the others."""


def profile_for(name: str, base_url: str | None = None) -> Profile:
    """Return what is known of the model `name` at `base_url` (None is OpenAI itself)."""
    family = _family(name)
    host = (urlsplit(base_url or "https://api.openai.com/v1").hostname or "").lower()
    echo, policy = _longest(family, REASONING) or ((), "never")
    text = TEXT_FAMILIES.search(family) is not None
    profile = Profile(
        window=_longest(family, WINDOWS),
        strategy="text" if text else "structured",
        echo=echo,
        echo_policy=policy,
        vision=SEES.search(family) is not None or bool(_longest(family, VISION)),
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
    return tuple(name for name in known if VISION.get(name))[:limit]


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


def _family(name: str) -> str:
    """Return a name as the tables spell it."""
    return name.lower().replace("_", "-").replace(" ", "-")


def _longest(family: str, table: Mapping[str, Fact]) -> Fact | None:
    """Return the value under the longest key that a word of the name starts with."""
    keys = [key for key in table if re.search(rf"(?<![a-z0-9]){re.escape(key)}", family)]
    return table[max(keys, key=len)] if keys else None


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


def prices_installed() -> bool:
    """Say whether there are prices on this machine; nothing is imported for that."""
    return _found()


class Priced:
    """A model whose replies say what they cost, if the provider has not said it itself.

    The prices are read in a thread of their own while the first answer is on its way: that takes a
    third of a second.
    """

    def __init__(self, model: ChatModel, *, base_url: str = "", ttl: str = "5m") -> None:
        self._model = model
        self._base_url = base_url
        self._ttl = ttl

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model.name

    @property
    def window(self) -> int | None:
        """The model's own window."""
        return self._model.window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield what the model yields, the reply with its cost."""
        if _found():
            _warm()
        async with aclosing(self._model.stream(request)) as items:
            async for item in items:
                yield self._with_cost(item) if isinstance(item, Reply) else item

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

    def body(self, request: Request) -> bytes:
        """Return the JSON that the model would send."""
        return body_of(self._model, request)

    def _with_cost(self, reply: Reply) -> Reply:
        if reply.usage.cost is not None:
            return reply
        for name in dict.fromkeys((reply.model, self.name)):
            cost = price(reply.usage, name, self._base_url, ttl=self._ttl) if name else None
            if cost is not None:
                return replace(reply, usage=replace(reply.usage, cost=cost))
        return reply


@cache
def _found() -> bool:
    return importlib.util.find_spec("genai_prices") is not None


@cache
def _warm() -> None:
    threading.Thread(target=_calculator, name="hermes-prices", daemon=True).start()


def _calculator() -> Any:  # noqa: ANN401 - the library is optional
    import genai_prices

    return genai_prices


def _calculated(counts: dict[str, int], model: str, base_url: str) -> float | None:
    if not _found() or not counts:
        return None
    library = _calculator()
    try:
        usage = library.Usage(**counts)
        found = library.calc_price(usage, model, provider_api_url=base_url or OPENAI)
    except (LookupError, ValueError):  # a model, an address or a kind of token without a price
        return None
    total = float(found.total_price)
    return total if total > 0 else None
