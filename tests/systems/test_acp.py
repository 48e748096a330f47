"""`jupyter hermes acp` with acpx, which others wrote, and with the oldest library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.e2e.harness import REPOSITORY, import_path
from tests.environments import environment, node, node_modules
from tests.loopback import Loopback, calls, says

PACKAGES = ("acpx@0.19.1",)
BESIDE = ("pytest", "pytest-timeout", "hypothesis", "pexpect", "psutil", "mcp")


@pytest.mark.parametrize(("option", "writes"), [("--approve-all", True), ("--deny-all", False)])
def test_acpx_runs_a_turn_and_answers_its_question(tmp_path, home, option, writes):
    modules = node_modules("acp-node", *PACKAGES)
    work, user = tmp_path / "work", tmp_path / "user"
    for folder in (work, user):
        folder.mkdir()
    call = ("write_file", {"path": "made.txt", "content": "x\n"})
    agent = f"{sys.executable} -m hermes_nb.cli acp"
    command = [modules / ".bin" / "acpx", "--agent", agent, "--format", "json", option]
    with Loopback(calls(call), says("all done")) as server:
        env = {**os.environ, "HOME": str(user), "HERMES_HOME": str(home)}
        env |= {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "loopback-model"}
        env["PATH"] = os.pathsep.join([str(node()), env["PATH"]])
        ran = subprocess.run(
            [*command, "--timeout", "100", "exec", "write"],
            cwd=work, env=env, capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line]
    updates = [line["params"]["update"] for line in lines if line.get("method") == "session/update"]
    said = [u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk"]
    assert "".join(said) == "all done", ran.stderr
    assert any(line.get("method") == "session/request_permission" for line in lines)
    assert (work / "made.txt").exists() == writes


def test_with_the_oldest_version_of_the_library():
    python = environment("acp-0.11", *BESIDE) / "bin" / "python"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120"]
    ran = subprocess.run(
        [*command, "tests/extras/acp/test_acp.py"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stdout[-4_000:]
