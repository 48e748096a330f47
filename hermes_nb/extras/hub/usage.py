"""Count an answer's tokens from the usage it reports, or estimate an upper bound."""

from __future__ import annotations

import json
from http import HTTPStatus

from tornado.log import app_log

from hermes_nb.core.messages import Json

GUESS = 4
"""Estimated bytes per token."""
MOST = 10**12
"""Maximum plausible tokens; larger figures are ignored."""
PROMPT = (
    ("prompt_tokens",),
    ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    ("promptTokenCount", "toolUsePromptTokenCount"),
    ("prompt_eval_count",),
)
WRITTEN = (
    ("completion_tokens",),
    ("output_tokens",),
    ("candidatesTokenCount", "thoughtsTokenCount"),
    ("eval_count",),
)
CACHED = ("cached_tokens", "cache_read_input_tokens", "cachedContentTokenCount")
"""Different providers' names for the figures. In PROMPT and WRITTEN, the figures in a row are added
up."""
ENDS = ("finish_reason", "finishReason", "stop_reason", "done")
NO_END = (None, False, "", "null")
LAST = ("message_stop", "response.completed", "response.incomplete", "response.failed")
"""Fields and event types that mark the end of a stream. Figures are final from then on."""
LATE = frozenset({408, 504, 524})
"""Gateway timeouts (524 is Cloudflare's), after which the provider may have worked anyway."""


class Usage:
    """Finds the provider's figures in an answer as it passes through.

    Supports the usage fields of OpenAI (chat completions and responses), Anthropic, Gemini,
    Mistral, OpenRouter, vLLM and Ollama, in a JSON document, in server-sent events or in JSON
    lines.
    """

    def __init__(self) -> None:
        self.sent = False
        self.status: int | None = None
        self.stream = False
        self.figures: dict[str, int] = {}
        self.bytes = 0
        self._ended = False
        self._final = False
        self._open = bytearray()
        self._data: list[bytes] = []

    def take(self, piece: bytes) -> None:
        """Process an answer's next bytes."""
        self.bytes += len(piece)
        self._open += piece
        if self.stream and b"\n" in piece:
            whole, newline, rest = bytes(self._open).rpartition(b"\n")
            self._open = bytearray(rest)
            self._lines(whole + newline)

    def end(self) -> None:
        """Process the remaining bytes once the answer is complete."""
        text = bytes(self._open)
        if not self.stream and self._parse_usage(text):
            self._final = True
        else:
            self._lines(text + b"\n\n")

    def _lines(self, text: bytes) -> None:
        for line in text.splitlines():
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif line.startswith(b"{"):
                self._parse_usage(line)
            elif not line and self._data:
                event = b"\n".join(self._data)
                if not self._parse_usage(event):  # events without an empty line between them
                    for each in self._data:
                        self._parse_usage(each)
                self._data.clear()

    def _parse_usage(self, text: bytes) -> bool:
        """Read one JSON text; return whether it is valid."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return False
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, dict):
                self._note(each)
        return True

    def _note(self, found: dict[str, Json]) -> None:
        """Record the figures in a document or event, and whether it ends the answer."""
        counted = "prompt_eval_count" in found
        if counted:
            self._add(found)
        for holder in (found, *(found.get(key) for key in ("message", "response", "x_groq"))):
            if isinstance(holder, dict):
                usage = holder.get("usage") or holder.get("usageMetadata")
                if isinstance(usage, dict):
                    self._add(usage)
                    counted = True
                    self._ended |= holder.get("choices") == []
        parts = [found, found.get("delta")]
        for key in ("choices", "candidates"):
            parts += found[key] if isinstance(found.get(key), list) else []
        self._ended |= found.get("type") in LAST or any(
            part.get(key) not in NO_END for part in parts if isinstance(part, dict) for key in ENDS
        )
        self._final |= counted and self._ended  # figures before the end may be incomplete

    def _add(self, usage: dict[str, Json]) -> None:
        """Record figures; later events include earlier events' figures."""
        for key, value in usage.items():
            if isinstance(value, dict) and key.endswith("_details"):
                self._add(value)
            elif isinstance(value, int | float) and 0 <= value < MOST:
                self.figures[key] = max(self.figures.get(key, 0), int(value))

    def tokens(self, estimate: int, longest: int) -> tuple[int, int, int]:
        """Return the token counts of the prompt, the answer, and the cached part of the prompt.

        If the provider's figures are missing or not final, this is an upper bound: `estimate` for
        the prompt, and for the answer `longest`, or the streamed amount if that is more.
        """
        count = self.figures.get
        read = max(sum(count(key, 0) for key in keys) for keys in PROMPT)
        total = max(count("total_tokens", 0), count("totalTokenCount", 0))
        written = max(total - read, *(sum(count(key, 0) for key in keys) for keys in WRITTEN))
        cached = min(read, max(count(key, 0) for key in CACHED))
        known = total or any(key in self.figures for keys in WRITTEN for key in keys)
        refused = (
            self.status is not None
            and not HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES
            and self.status not in LATE
        )
        if refused or not self.sent:
            return read, written, cached  # usually zero
        if not (read and known and self._final):
            written = max(written, longest, self.bytes // GUESS)
            app_log.warning(
                "the provider reported no token usage: recorded an upper bound of %d input and "
                "%d output tokens",
                *(read or estimate, written),
            )
        return read or estimate, written, cached
