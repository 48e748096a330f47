"""Settings that belong together: memory, skills, compression, delegation, sandbox, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_nb.core.budget import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The curated memory: what is on, whether a write asks, the provider beside it.

    `options` are the provider's own settings, from `memory.NAME`. `nudge` is the number of user
    turns between two reviews of what to remember, 0 for none. `limits` are characters by target.
    """

    enabled: bool = True
    user_profile: bool = True
    write_approval: bool = False
    provider: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
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
    max_prompt_tokens: int = 100_000
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
