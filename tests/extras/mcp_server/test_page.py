"""The user answers in the notebook's page whether another agent may do something."""

from __future__ import annotations

import json
import socket

import pytest

from tests.extras.mcp_server.doors import served
from tests.notebook.bridge.test_rejoining import Page

pytestmark = pytest.mark.kernel


class AskedPage(Page):
    """A page that keeps the questions that it shows."""

    def __init__(self, kernel):
        super().__init__(kernel)
        self.questions = []

    def answer(self, comm, asked):
        if asked["op"] == "ask":
            self.questions.append(asked["args"])
        super().answer(comm, asked)


CODE = "open('got', 'w').close()"


def test_a_question_names_the_program_and_its_answer_decides(tmp_path, home):
    with served(tmp_path, home) as door:
        page = AskedPage(door.kernel)
        page.run("%hermes serve")
        page.until(lambda: not page.running)
        with socket.socket(socket.AF_UNIX) as peer, peer.makefile("r") as lines:
            peer.connect(str(door.socket))
            peer.setblocking(False)

            def answered(number):
                """Take one answer; the page is played meanwhile."""
                answers = [json.loads(line) for line in iter(lines.readline, "")]
                given.update({each["id"]: each for each in answers if "status" in each})
                return number in given

            given = {}
            for number, answer in enumerate(("deny", "once", "always", "deny")):
                page.answers["ask"] = {"answer": answer, "reason": "not now"}
                call = {"op": "call", "name": "run_python", "arguments": {"code": CODE}}
                line = json.dumps({"id": number, "client": "claude <b>code", **call})
                peer.sendall(line.encode() + b"\n")
                page.until(lambda number=number: answered(number))
                assert (tmp_path / "got").exists() == (answer != "deny" or number == 3)
                (tmp_path / "got").unlink(missing_ok=True)
        assert "not now" in given[0]["text"] and given[0]["status"] == "denied"
        assert [given[number]["status"] for number in (1, 2, 3)] == ["ok"] * 3
        assert page.asked.count("ask") == 3
        assert "Claude-b-code, another program" in str(page.questions[0]["why"])
