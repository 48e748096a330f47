"""What a newcomer runs into in the first hour, in a real kernel."""

from __future__ import annotations

import pytest

from tests.kernels import Kernel
from tests.loopback import failure, stream, text_chunks, tool_chunks
from tests.notebook.test_turns import ask, environment, plays, server, shared

__all__ = ["environment", "plays", "server", "shared"]
pytestmark = pytest.mark.kernel
SLEEPS = "import time\ntime.sleep(5)"
REFUSED = failure(401, {"error": {"message": "Incorrect API key provided."}})


def test_the_clock_runs_while_code_holds_up_the_kernel(shared, plays, monkeypatch):
    plays(stream(tool_chunks(("run_python", {"code": SLEEPS}))), stream(text_chunks("Done.")))
    seen = []
    take = Kernel._take

    def noting(message, result):
        seen.append(message)
        return take(message, result)

    monkeypatch.setattr(Kernel, "_take", staticmethod(noting))
    result = ask(shared, "wait", "--approve all", allow_stdin=True)
    assert "Done." in result.markdown
    shown = [m["content"].get("data", {}).get("text/markdown", "") for m in seen]
    held_up = [text for text in shown if "◌ **run_python**" in text]
    assert len({text.rsplit("·", 1)[1] for text in held_up}) >= 3, held_up
    assert all(m["parent_header"].get("msg_type") == "execute_request" for m in seen)


def test_a_new_key_counts_from_the_next_turn_on(shared, plays):
    server = plays(REFUSED, stream(text_chunks("Hello.")))
    result = ask(shared)
    assert result.status == "error"
    assert "`%hermes doctor` says where the key comes from" in result.error["evalue"]
    assert len(result.error["traceback"]) == 1
    address = f"'HERMES_NB_BASE_URL': '', 'OPENAI_BASE_URL': {server.url!r}"
    old = "import os; old = dict(os.environ)\n"
    shared.run(f"{old}os.environ.update({{{address}, 'OPENAI_API_KEY': 'a-newer-key'}})")
    assert "Hello." in ask(shared).markdown
    assert server.exchanges[-1].headers["authorization"] == "Bearer a-newer-key"
    shared.run("os.environ.clear(); os.environ.update(old)\n%hermes model loopback-model")


def test_the_last_turn_is_one_that_began(shared, plays):
    plays(stream(text_chunks("The answer.")))
    ask(shared)
    assert shared.run("%%hermes --tools nonsense\nx").status == "error"
    assert "The answer." in shared.run("%hermes last").markdown


def test_a_question_that_was_answered_leaves_its_answer_in_the_calls_line(shared, plays):
    call = stream(tool_chunks(("run_python", {"code": "made = 1"})))
    plays(call, stream(text_chunks("Done.")))
    result = ask(shared, "make it", answers=("not now",))
    assert "⊘ <b>run_python</b> <code>made = 1</code> · denied: not now · " in result.markdown
