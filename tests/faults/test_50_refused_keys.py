"""A key that is refused is not tried again, and no text anywhere shows it."""

from __future__ import annotations

import base64
import logging
import sqlite3
import urllib.parse

import pytest

from tests.faults.cells import calls, says, served_kernel
from tests.faults.provider import told_by
from tests.loopback import Reply, chunk, event, failure

KEYS = {
    "as openai's": "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4zAb3dEf6h",
    "as nobody's": "my very own key, with spaces & signs",
    "short": "hunter2",
    "hex": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}


def echoes(key):
    """Return the ways in which a server may say a key back."""
    return {
        "401": failure(401, {"error": {"message": f"Incorrect API key provided: {key}."}}),
        "403": failure(403, {"error": {"message": f"the key {key} may not do this"}}),
        "revoked": failure(401, {"error": {"code": "key_revoked", "message": f"revoked: {key}"}}),
        "in a page": failure(403, f"<html><title>no {key}</title>{key}</html>".encode()),
        "in plain text": failure(401, f"Bearer {key} is unknown".encode()),
        "in a header": failure(401, {"error": {}}, WWW_Authenticate=f'Bearer realm="{key}"'),
        "in a field": failure(401, {"detail": {"key": key, "headers": {"authorization": key}}}),
        "in capitals of the address": failure(
            401, {"error": {"message": f"?api_key={urllib.parse.quote(key)}"}}
        ),
        "in base64": failure(
            401,
            {"error": {"message": f"Basic {base64.b64encode(f'user:{key}'.encode()).decode()}"}},
        ),
        "twice": failure(401, {"error": {"message": f"{key}{key}"}}),
        "with status 400": failure(400, {"error": {"message": f"API key not valid: {key}"}}),
    }


CASES = {
    f"{kind}, {how}": (key, how)
    for kind, key in KEYS.items()
    for how in echoes(key)
    if kind == "hex" or how in ("401", "in base64")
}


@pytest.mark.parametrize(("key", "how"), CASES.values(), ids=CASES)
def test_50_it_is_not_tried_again_and_not_shown(
    server, waits, home, tmp_path, caplog, capfd, key, how
):
    caplog.set_level(logging.INFO)  # below that, the HTTP library shows what servers send
    caplog.set_level(logging.DEBUG, logger="hermes_nb")
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        turn = story.ask(echoes(key)[how], fails=True)
        assert len(story.server.exchanges) == 1 and waits == []
        assert story.server.exchanges[0].headers["authorization"] == f"Bearer {key}"
        assert "refused the API key" in turn.error
        shown = [turn.error, turn.status, repr(turn), str(turn.events), turn._repr_markdown_()]
        story.goes_on()
        shown += [repr(story.hermes), str(story.hermes.warnings), caplog.text, *capfd.readouterr()]
    stored = "\n".join(sqlite3.connect(home / "notebook.db").iterdump())
    forms = {key, urllib.parse.quote(key), base64.b64encode(f"user:{key}".encode()).decode()}
    for text in (*shown, stored):
        assert not [form for form in forms if form in text]


def test_50_revoked_in_the_middle_of_the_work(server, waits, home, tmp_path):
    key = KEYS["as openai's"]
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        story.ask(says("Hello."))
        made = calls(("write_file", {"path": "made.txt", "content": "once\n"}))
        turn = story.ask(made, echoes(key)["revoked"], fails=True)
        assert "refused the API key" in turn.error and waits == []
        assert (story.work / "made.txt").exists()
        assert [each.role for each in turn.messages] == ["user", "assistant", "tool", "assistant"]
        story.goes_on()


def test_50_revoked_in_the_middle_of_a_word(server, waits, home, tmp_path):
    key = KEYS["as openai's"]
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        refused = {"error": {"type": "authentication_error", "message": f"{key} was revoked"}}
        turn = story.ask(Reply([event(chunk({"content": "Half "})), event(refused)]), fails=True)
        assert waits == [] and key not in turn.error
        assert turn.messages[-1].text == "Half "
        story.goes_on()


@pytest.mark.parametrize("key", ["sk-\u00e9\u202e", "sk-a\nX-Evil: 1", "sk-\0", "\U0001f511" * 8])
def test_50_a_key_that_no_header_can_carry(server, waits, home, tmp_path, key):
    with told_by(server, home, tmp_path / "work", api_key=key) as story:
        turn = story.ask(says("never"), fails=True)
        assert "API key" in turn.error and key not in turn.error and waits == []
        assert story.server.exchanges == []


@pytest.mark.kernel
@pytest.mark.slow
def test_50_in_a_cell(server, tmp_path):
    key = KEYS["hex"]
    (tmp_path / "home").mkdir()
    with served_kernel(server, tmp_path, HERMES_NB_API_KEY=key) as kernel:
        server.replies[:] = [echoes(key)["401"]]
        result = kernel.run("%hermes hello")
        assert result.status == "error"
        assert server.exchanges[-1].headers["authorization"] == f"Bearer {key}"
        (line,) = result.error["traceback"]
        assert "refused the API key" in line
        status = kernel.run("%hermes status").markdown + kernel.run("%hermes doctor").markdown
        assert key not in str(result.error) + result.text + result.markdown + status
        server.replies[:] = [says("Hello.")]
        assert "Hello." in kernel.run("%hermes hello").markdown
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()
