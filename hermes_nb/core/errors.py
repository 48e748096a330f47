"""The exceptions of hermes_nb.

In a notebook, each renders as a single line (through IPython's hook `_render_traceback_`) and still
fails the cell. Messages never contain API keys: code that raises with untrusted text redacts it.
"""

from __future__ import annotations

from enum import Enum

from hermes_nb.core.messages import Origin


class HermesError(Exception):
    """Base class for errors the user can act on; the message tells them how."""

    def _render_traceback_(self) -> list[str]:
        """Return a single line for IPython to show instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(HermesError):
    """A setting is invalid; the turn does not start."""


class SessionBusy(HermesError):
    """The session is already running a turn; a second one does not start."""


class StoreError(HermesError):
    """The session store failed; the turn continues without it."""


class SessionTakenError(StoreError):
    """Another writer has added messages to the session; the caller continues in a copy."""


class ToolError(HermesError):
    """A tool call failed; the model receives the message as the call's result."""

    origin: Origin = "workspace"
    """Source of the message text; see `Origin`."""


class ToolDenied(ToolError):
    """The user or the approval policy denied the call; the model receives the reason."""


class TurnInterrupted(HermesError):
    """The user interrupted a tool; the turn ends as interrupted."""


class FailureKind(Enum):
    """Why a model request failed; the value is the text shown to the user."""

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
    """A model request failed and won't be retried; the turn ends as failed.

    Attributes:
        kind: The reason for the failure.
        retry_after: Delay that the provider asked for, in seconds; None if it named none.
        window: Context window in tokens if an overflow error named it, otherwise None.
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
