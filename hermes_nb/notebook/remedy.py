"""Advice after a failed turn, which is added to the error in the last line of its cell.

A failure is recognised by the start of its message, as defined in `models.chat.errors`. Scripts and
the command line need different advice, so the advice for notebooks is here.
"""

from __future__ import annotations

from dataclasses import replace

from hermes_nb.agent.session.turn import Turn
from hermes_nb.safety.redact import redact

OTHER = "`%hermes model NAME` switches to another model"
BY_BEGINNING = (
    (
        "the provider refused the API key",
        "`%hermes doctor` shows where the key comes from; `%hermes key` replaces it from "
        "the next turn on",
    ),
    ("the account has no quota left", f"top it up, or {OTHER}"),
    ("the provider limits the rate of requests", f"try again later, or {OTHER}"),
    ("the provider cannot answer just now", f"try again later, or {OTHER}"),
    (
        "the conversation does not fit",
        "`%hermes compress` shortens it, `%hermes new` starts a new one",
    ),
    (
        "the provider refused the request",
        "`%hermes models` lists the available models, `%hermes model NAME` selects one",
    ),
    (
        "the provider does not know this model",
        "`%hermes models` lists the available models, `%hermes model NAME` selects one; an address"
        "{at} usually ends in /v1",
    ),
    (
        "no connection to the provider",
        "is a server running{at}, and the network up? `%hermes model embedded` needs neither",
    ),
    ("the provider did not answer in time", f"try again, or {OTHER}"),
    (
        "the answer could not be read",
        "does the server{at} speak OpenAI's protocol? Its address usually ends in /v1",
    ),
    (
        "no API key",
        "`%hermes key` asks for one; it does not belong in the notebook",
    ),
    ("the server answered with a web page", "it usually ends in /v1"),
    ("the server's answer is not a chat completion", "it usually ends in /v1"),
    ("the server sent", f"try again, or {OTHER}"),
    ("the server's stream could not be read", f"try again, or {OTHER}"),
    ("the provider ended the reply with an error", f"try again, or {OTHER}"),
)
"""Error message prefixes, with the advice for each."""


def remedy(error: str, *, address: str = "") -> str:
    """Return the advice for an error, or "" if there is no known remedy.

    `address` is the model's address, or "" for the provider's default.
    """
    for beginning, told in BY_BEGINNING:
        if error.startswith(beginning):
            return told.replace("{at}", f" at {redact(address)}" if address else "")
    return ""


def with_remedy(turn: Turn, *, address: str = "") -> Turn:
    """Add advice to a failed turn's error; return other turns unchanged."""
    told = remedy(turn.error, address=address) if turn.reason == "failed" else ""
    return replace(turn, error=f"{turn.error.rstrip(' .')}; {told}") if told else turn
