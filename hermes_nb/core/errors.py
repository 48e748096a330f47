"""The exceptions of hermes_nb, each named for what happens next.

Every one of them renders as a single line in a notebook (`_render_traceback_` is IPython's hook for
that) and still fails its cell. Their text never holds a key: whoever raises with text from outside
redacts it first.
"""

from __future__ import annotations

from enum import Enum

from hermes_nb.core.messages import Origin


class HermesError(Exception):
    """Something the user can act on; the text says what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return the one line that IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(HermesError):
    """A setting cannot be used as it stands; the turn does not start."""


class SessionBusy(HermesError):
    """The session is already taking a turn; the second one does not start."""


class StoreError(HermesError):
    """The session store cannot be used; the turn goes on without it."""


class SessionTakenError(StoreError):
    """Somebody else has added to the session: whoever meets this goes on in a copy."""


class ToolError(HermesError):
    """A tool could not do it; the text becomes the result that the model reads.

    `origin` is whose text that is.
    """

    origin: Origin = "workspace"


class ToolDenied(ToolError):
    """The user, or the policy that stands in for one, refused the call; the model reads why."""


class TurnInterrupted(HermesError):
    """The user stopped what a tool was doing; the turn ends as a stop button ends it."""


class FailureKind(Enum):
    """Why a model request failed; the value is the word shown to the user."""

    AUTH = "authentication"
    QUOTA = "quota"
    RATE_LIMIT = "rate limit"
    OVERLOADED = "overloaded"
    CONTEXT_OVERFLOW = "context overflow"
    BAD_REQUEST = "bad request"
    NOT_FOUND = "not found"
    NETWORK = "network"
    TIMEOUT = "timeout"
    MALFORMED = "malformed reply"


class ModelError(HermesError):
    """A model request failed for good; the turn ends as failed.

    `retry_after` is what the provider asked for, in seconds from now, or None. `window` is the
    context window in tokens when an overflow error named it.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: FailureKind,
        retry_after: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.window = window
