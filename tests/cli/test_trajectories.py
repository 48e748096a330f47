"""`jupyter hermes trajectories` as a process of its own, against a server here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call

from tests.loopback import Loopback, calls, failure, pause, says
from tests.patience import until

PROGRAM = [sys.executable, "-m", "hermes_nb.cli", "trajectories"]


def run(*words, url="", **how):
    env = {**os.environ, "HERMES_NB_BASE_URL": url, "HERMES_NB_MODEL": "loopback"}
    return subprocess.run(
        [*PROGRAM, *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **how,
    )


def lines(path):
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


def test_sessions_are_written_once_and_by_consent_alone(home, tmp_path):
    (tmp_path / "a.txt").write_text("three rows")
    for script in ([call("read_file", path="a.txt"), "Three."], [call("read_file", path="a.txt")]):
        with Hermes(ScriptedModel(script), cwd=tmp_path) as hermes:
            hermes.ask("How many rows?")
    output = tmp_path / "data.jsonl"
    refused = run("-o", output)
    assert refused.returncode == 2
    assert "--consent" in refused.stderr
    assert not output.exists()
    for _ in range(2):  # the second time there is nothing to add
        done = run("-o", output, "--consent")
        assert done.returncode == 0, done.stderr
        (found,) = lines(output)
        assert [m["role"] for m in found["messages"]][1:] == [
            *("user", "assistant", "tool", "assistant")
        ]
        assert "read_file 1 call" in done.stderr
        assert "1 left out" in done.stderr
    assert [each["metadata"]["flaw"] for each in lines(tmp_path / "data.rejected.jsonl")] != []
    assert run("-o", tmp_path / "b.jsonl", "--consent", "no such session").returncode == 1


def test_prompts_are_led_each_once_also_after_a_kill(home, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\ntwo\n\n{"prompt": "three"}\none\n', "utf-8")
    output = tmp_path / "data.jsonl"
    words = ["--prompts", prompts, "-o", output, "--parallel", 1, "--tools", "files"]
    write = calls(("write_file", {"path": "a.txt", "content": "x"}))
    with Loopback(write, says("One."), says("Two."), pause(60)) as server:
        env = {**os.environ, "HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "loopback"}
        process = subprocess.Popen([*PROGRAM, *map(str, words)], env=env)
        assert until(lambda: len(server.bodies) == 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
    whole = output.read_bytes()
    assert len(lines(output)) == 2
    output.write_bytes(whole + b'{"messages": [{"ro')  # torn in the kill
    with Loopback(says("Three.")) as server:
        done = run(*words, url=server.url)
        assert done.returncode == 0, done.stderr
        assert len(server.bodies) == 1
    assert output.read_bytes().startswith(whole)
    found = lines(output)
    answers = [each["messages"][-1]["content"] for each in found]
    assert answers == ["One.", "Two.", "Three."]
    assert found[0]["metadata"]["tools"] == {"write_file": {"calls": 1, "failed": 0}}
    assert "3 conversations" in done.stderr
    assert "write_file 1 call" in done.stderr
    system = found[0]["messages"][0]["content"]
    assert str(home) not in system


def test_what_came_to_nothing_is_left_out_until_it_is_wanted_again(home, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n", "utf-8")
    output = tmp_path / "data.jsonl"
    words = ["--prompts", prompts, "-o", output]
    with Loopback(failure(400, {"error": {"message": "no"}})) as server:
        assert run(*words, url=server.url).returncode == 1
    assert not output.exists()
    (rejected,) = lines(tmp_path / "data.rejected.jsonl")
    assert rejected["metadata"]["flaw"] == "interrupted"
    with Loopback(says("One.")) as server:
        assert run(*words, url=server.url).returncode == 1  # it stays left out
        assert server.bodies == []
        done = run(*words, "--retry", url=server.url)
        assert done.returncode == 0, done.stderr
    assert [each["messages"][-1]["content"] for each in lines(output)] == ["One."]
