"""Recognise "the conversation is too long" in the words of the many providers.

Sources: the providers' error references and the error strings in the source of llama.cpp,
llama-cpp-python, vLLM, text-generation-inference and LM Studio, as of 2026-11.
"""

from __future__ import annotations

import re

_OVERFLOW = re.compile(
    r"""(?ix)
      context[_ ]length[_ ]exceeded | exceed_context_size | model_context_window_exceeded
    | (?:maximum|max)[ ](?:context|prompt|model)[ ]length
    | prompt[ ]is[ ]too[ ]long | input[ ]is[ ]too[ ]long | prompt[ ]too[ ]long
    | prompt[ ]exceeds[ ]max | exceed(?:s|ed|ing)?[ ](?:the[ ])?(?:available[ ])?context
    | exceeds?[ ](?:the[ ])?(?:model.s[ ])?(?:maximum[ ])?context
    | context[ ](?:window|length|size)[ ](?:of|exceeds|is[ ]exceeded|limit)
    | context[ ]the[ ]overflows | (?:context|model[ ]token)[ ]limit
    | input[ ]token[ ]count.{0,40}exceeds | too[ ]many[ ](?:input[ ])?tokens
    | reduce[ ]the[ ]length[ ]of[ ](?:the|your)
    | inputs`?[ ](?:tokens[ ])?(?:\+|must[ ]have[ ]less)
    | request[ ]too[ ]large[ ]for[ ]model | request_too_large
    | (?:request|prompt|input)[ ].{0,40}(?:n_ctx|context[ ]size)
    """
)
_NUMBER = r"(\d[\d,_]{2,11}k?)"
_WINDOWS = tuple(
    re.compile(pattern.replace("NUMBER", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"(?:maximum|max) (?:context|prompt|model) length (?:is|of|:) ?NUMBER",
        r"(?:maximum|max) (?:context|prompt|model) length:? NUMBER",
        r"tokens? > NUMBER maximum",
        r"context limit: [\d,_ +]{1,40}> NUMBER",
        r"context (?:window|length|size)(?: of)?(?: only)?[ (:]{1,2}NUMBER",
        r"tokens allowed \(NUMBER\)",
        r"NUMBER maximum context length",
        r"model token limit: NUMBER",
        r"(?:n_ctx|context size)\W{1,5}NUMBER",
        r"(?:must be|cannot exceed) (?:<= ?)?NUMBER",
        r"while limit is NUMBER",
        r"exceeds limit \(NUMBER\)",
    )
)


_SENSIBLE = range(256, 100_000_000)


def is_overflow(text: str) -> bool:
    """Say whether an error text means that the prompt does not fit.

    A rate limit that the request alone exceeds counts too: waiting never helps, a shorter prompt
    does.
    """
    return _OVERFLOW.search(text) is not None


def window_in(text: str) -> int | None:
    """Return the context window in tokens that an error text names, or None."""
    for pattern in _WINDOWS:
        if found := pattern.search(text):
            digits = found[1].lower()
            scale = 1000 if digits.endswith("k") else 1
            window = int(re.sub(r"\D", "", digits)) * scale
            if window in _SENSIBLE:
                return window
    return None
