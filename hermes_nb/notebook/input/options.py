"""What a magic line says about one turn."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field

from hermes_nb.core.budget import Limits
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import Effort
from hermes_nb.safety.guard import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """One turn's wishes; None, "" and () mean: as it is.

    `images` are expressions, `into` is the name of a variable. `limits` hold for this turn alone.
    """

    model: str = ""
    tools: str = ""
    session: str = ""
    new: bool = False
    context: bool = True
    max_requests: int | None = None
    limits: Limits = field(default_factory=Limits)
    approve: Mode | None = None
    effort: Effort = ""
    images: tuple[str, ...] = ()
    into: str = ""
    quiet: bool = False
    dry_run: bool = False

    def check(self, prompt: str) -> None:
        """Raise `ConfigError` for what can be seen to be wrong before anything happens."""
        if not prompt.strip():
            message = "the prompt is empty; write it below %%hermes or behind %hermes"
            raise ConfigError(message)
        if self.into and (not self.into.isidentifier() or keyword.iskeyword(self.into)):
            message = f"--into {self.into!r} is not a variable's name; nothing was sent"
            raise ConfigError(message)
