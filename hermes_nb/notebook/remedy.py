"""Advice after a failed turn, which is added to the error in the last line of its cell.

A failure is recognised by the start of its message, as defined in `models.chat.errors`. Scripts and
the command line need different advice, so the advice for notebooks is here.
"""

from __future__ import annotations

from dataclasses import replace

from hermes_nb.agent.session.turn import Turn
from hermes_nb.safety.redact import redact

OTHER = "`%hermes model NAME` goes on with another model"
BY_BEGINNING = (
    (
        "the provider refused the API key",
        "`%hermes doctor` says where the key comes from; `%hermes key` asks for another, which "
        "counts from the next turn on",
    ),
    ("the account has no quota left", f"top it up, or {OTHER}"),
    ("the provider limits the rate of requests", f"ask again in a while, or {OTHER}"),
    ("the provider cannot answer just now", f"ask again in a while, or {OTHER}"),
    (
        "the conversation does not fit",
        "`%hermes compress` makes it shorter, `%hermes new` begins another",
    ),
    (
        "the provider refused the request",
        "`%hermes models` lists the models at hand, `%hermes model NAME` chooses one",
    ),
    (
        "the provider does not know this model",
        "`%hermes models` lists what is served, `%hermes model NAME` chooses one; an address"
        "{at} mostly ends in /v1",
    ),
    (
        "no connection to the provider",
        "is a server running{at}, and the network up? `%hermes model embedded` needs neither",
    ),
    ("the provider did not answer in time", f"ask again, or {OTHER}"),
    (
        "the answer could not be read",
        "does the server{at} speak OpenAI's protocol? Its address mostly ends in /v1",
    ),
    (
        "no API key",
        "`%hermes key` asks for one; it does not belong in the notebook",
    ),
    ("the server answered with a web page", "it mostly ends in /v1"),
    ("the server's answer is no chat completion", "it mostly ends in /v1"),
    ("the server sent", f"ask again, or {OTHER}"),
    ("the server's stream could not be read", f"ask again, or {OTHER}"),
    ("the provider broke the reply off", f"ask again, or {OTHER}"),
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
