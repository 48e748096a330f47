"""Every way in which a request can fail says what to do next, in one line and without a key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hermes_nb.agent.session.turn import Turn
from hermes_nb.core.errors import FailureKind
from hermes_nb.models import chat
from hermes_nb.models.chat.errors import classify, from_body
from hermes_nb.notebook.commands.table import commands
from hermes_nb.notebook.remedy import BY_BEGINNING, remedy, with_remedy

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
STATUSES = (400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 503, 529)


@pytest.mark.parametrize("status", STATUSES)
def test_every_answer_of_a_provider_has_a_way_out(status):
    error = from_body({"error": {"message": "It is not possible."}}, status=status)
    told = with_remedy(Turn(text="", reason="failed", error=str(error))).error
    assert told.startswith(str(error).rstrip("."))
    assert remedy(str(error)) and told.endswith(remedy(str(error)))
    assert "\n" not in told


def test_advice_is_for_messages_that_exist():
    folder = Path(chat.__file__).parent
    texts = [path.read_text("utf-8") for path in folder.iterdir() if path.is_file()]
    for beginning, _ in BY_BEGINNING:
        assert any(beginning in text for text in texts), beginning


def test_every_kind_of_failure_is_known():
    kinds = {
        from_body({"error": {"message": text}}, status=status).kind
        for status, text in [
            *((status, "no") for status in STATUSES),
            (429, "insufficient_quota"),
            (400, "maximum context length is 4096 tokens, you requested 9000"),
        ]
    }
    kinds |= {classify(error).kind for error in (ConnectionError("x"), TimeoutError("x"))}
    kinds.add(classify(UnicodeDecodeError("utf-8", b"", 0, 1, "x")).kind)
    assert kinds == set(FailureKind)
    for error in (ConnectionError("refused"), TimeoutError(), ValueError("?")):
        assert remedy(str(classify(error)))


def test_the_address_is_named_without_what_is_secret_in_it():
    told = remedy("no connection to the provider: refused", address=f"http://127.0.0.1:9/{KEY}/v1")
    assert "at http://127.0.0.1:9/" in told and KEY not in told
    assert "running, and" in remedy("no connection to the provider: refused")


def test_a_remedy_needs_no_cell():
    assert not [told for _, told in BY_BEGINNING if re.search(r"\bcell", told)]  # a chat has none


def test_only_commands_that_exist_are_named():
    words = " ".join(told for _, told in BY_BEGINNING).split("`%hermes ")[1:]
    assert {word.split("`")[0].split()[0] for word in words} <= set(commands())


def test_other_turns_are_left_as_they_are():
    for turn in (
        Turn(text="x", reason="answered"),
        Turn(text="x", reason="failed", error="ValueError: odd"),
    ):
        assert with_remedy(turn) == turn
