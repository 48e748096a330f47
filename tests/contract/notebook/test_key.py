"""`%hermes key`: typed where nothing shows it, kept for its owner alone, and tried."""

from __future__ import annotations

import sqlite3
import stat

import pytest

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.loopback import Loopback, calls, says
from tests.notebook.commands.test_endpoints import listing, refusal

pytestmark = pytest.mark.kernel

KEY = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
OTHER = KEY[::-1]
BEFORE = "# mine\nOPENAI_API_KEY=old\nGITHUB_TOKEN='a b' # kept\n"


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Yield a kernel that knows an address and no key, its server and its `.env`."""
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with Loopback(listing=listing("model-a", "model-b")) as server:
        blank = {"HERMES_NB_BASE_URL": "", "HERMES_NB_MODEL": ""}
        env = environment(server, tmp_path, OPENAI_BASE_URL=server.url, **blank)
        with kernel(env, cwd=str(tmp_path)) as running:
            assert running.run("%load_ext hermes_nb").status == "ok"
            yield running, server, tmp_path / "home" / ".env"


def test_it_is_asked_for_kept_tried_and_used(cells, tmp_path):
    running, server, file = cells
    assert "%hermes key" in running.run("%hermes doctor --offline").text
    shown = [result := running.run("%hermes key", answers=(KEY,))]
    assert (result.status, result.hidden) == ("ok", [True])
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}" and not server.exchanges
    assert "accepts the key" in result.text and "%hermes model NAME" in result.text
    assert file.read_text() == f"OPENAI_API_KEY={KEY}\n"
    server.replies[:] = [says("Hello.")]
    shown.append(running.run("%%hermes --model model-a\nhi"))
    assert server.exchanges[-1].headers["authorization"] == f"Bearer {KEY}"
    # A key that is refused is not kept, and the file of old is not lost.
    file.write_text(BEFORE)
    file.chmod(0o644)
    server.listing = refusal(401, f"no such key: {OTHER}")
    shown.append(refused := running.run("%hermes key openai", answers=(OTHER,)))
    assert "refused" in refused.error["evalue"] and "Nothing was saved" in refused.error["evalue"]
    assert sorted(file.read_text().splitlines()) == sorted(BEFORE.splitlines())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    server.listing = refusal(500, "busy")
    shown.append(unknown := running.run("%hermes key", answers=(OTHER,)))
    assert "Saved as" in unknown.text and "accepts the key" not in unknown.text
    assert file.read_text() == BEFORE.replace("OPENAI_API_KEY=old\n", "") + (
        f"OPENAI_API_KEY={OTHER}\n"
    )
    shown.append(running.run("%history -g"))
    said = "".join(f"{each.outputs}{each.error}{each.prompts}" for each in shown)
    said += "".join(sqlite3.connect(tmp_path / "home" / "notebook.db").iterdump())
    assert KEY not in said and OTHER not in said


def test_it_is_never_taken_from_the_line_or_without_a_prompt(cells):
    running, server, file = cells
    for line in (f"%hermes key {KEY}", f"%hermes key sk-proj-{KEY}"):
        told = running.run(line, allow_stdin=True).error["evalue"]
        assert "removed from the history" in told and KEY not in told
    assert KEY not in running.run("%history -g").text
    assert "not interactive" in running.run("%hermes key").error["evalue"]
    assert "nothing has changed" in running.run("%hermes key", answers=("",)).text
    server.replies[:] = [calls(("run_python", {"code": "%hermes key"})), says("ok")]
    asked = running.run("%%hermes --model model-a --approve all\ngo", allow_stdin=True).prompts
    assert "cannot use this command" in server.bodies[-1]["messages"][-1]["content"]
    assert not file.exists() and not asked


def test_it_is_kept_under_its_providers_name(tmp_path, monkeypatch):
    """The provider itself is out of reach, so the key is kept and not called good."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with Loopback() as server:
        blank = {"HERMES_NB_BASE_URL": "", "HERMES_NB_MODEL": "", "OPENAI_BASE_URL": ""}
        env = environment(server, tmp_path, **blank)
        with kernel(env, cwd=str(tmp_path)) as running:
            assert running.run("%load_ext hermes_nb").status == "ok"
            told = running.run("%hermes key", answers=(f"sk-ant-{KEY}",))
            assert "ANTHROPIC_API_KEY" in told.text
            assert "accepts the key" not in told.text
            running.run("%hermes key gemini", answers=(KEY,))
            running.run("%hermes model anthropic/claude-x")
            status = running.run("%hermes status").text
    assert (tmp_path / "home" / ".env").read_text().splitlines() == [
        f"ANTHROPIC_API_KEY=sk-ant-{KEY}",
        f"GEMINI_API_KEY={KEY}",
    ]
    assert "claude-x" in status
    assert KEY not in status
