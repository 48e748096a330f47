"""Anthropic's own SDK accepts what is sent to it, and what the tests reply in its place."""

from __future__ import annotations

import json
import subprocess

from tests.environments import environment
from tests.models.chat.test_wires import REPLIES, TURN, body
from tests.wires import Said


def test_requests_and_replies_have_the_types_of_the_sdk():
    requests = [
        body("messages", *TURN[:number], effort=effort, name=name, **more)
        for number in range(2, len(TURN) + 1)
        for effort in ("", "low", "high")
        for name in ("claude-opus-4-8", "claude-sonnet-4-5")
        for more in ({}, {"tool_choice": "none"}, {"cache_ttl": "1h"})
        if number not in (3, 4)  # calls without results are never sent
    ]
    echo = [{"type": "thinking", "thinking": "ä", "signature": "c2ln", "index": 0}]
    echo.append({"type": "redacted_thinking", "data": "b3A=", "index": 1})
    said = TURN[2].from_dict(TURN[2].to_dict() | {"echo": {"thinking_blocks": echo}})
    requests.append(body("messages", *TURN[:2], said, *TURN[3:], effort="low"))
    streams = [events(said) for said in REPLIES]
    given = json.dumps({"requests": requests, "streams": streams})
    python = environment("anthropic") / "bin" / "python"
    script = ["-P", "tests/systems/anthropic_types.py"]
    run = subprocess.run(
        [python, *script], check=False, input=given, capture_output=True, text=True, timeout=120
    )
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)
    assert len(requests) > 70
    assert sum(map(len, streams)) > 150


def events(said: Said) -> list[dict]:
    """Return the events of a reply."""
    lines = b"".join(said.on("messages").steps).split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
