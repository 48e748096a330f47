"""`jupyter hermes trajectories` as a process of its own, against a server here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from hermes_nb import Hermes
from hermes_nb.cli.main import main
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.training.export import _prompts
from hermes_nb.extras.training.trajectories import name_of
from hermes_nb.models.scripted import ScriptedModel, call

from tests.loopback import (
    Loopback,
    Reply,
    calls,
    failure,
    pause,
    says,
    stream,
    text_chunks,
    tool_chunks,
)
from tests.patience import until

KEY = "sk-ant-" + "a1B2" * 6
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_what_came_to_nothing_is_left_out_until_it_is_wanted_again(home, tmp_path, monkeypatch):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n", "utf-8")
    output = tmp_path / "data.jsonl"

    def run(server, *words):
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        fixed = ["--prompts", str(prompts), "-o", str(output), "--model", "loopback"]
        return main(["trajectories", *fixed, *words])

    with Loopback(failure(400, {"error": {"message": f"not with {KEY}"}})) as server:
        assert run(server) == 1
    assert not output.exists()
    (rejected,) = lines(tmp_path / "data.rejected.jsonl")
    assert rejected["metadata"]["outcome"] == "interrupted"
    assert "400" in rejected["metadata"]["flaw"] and KEY not in str(rejected)
    with Loopback(says("One.")) as server:
        assert run(server) == 1  # it stays left out
        assert server.bodies == []
        assert run(server, "--retry") == 0
    assert [each["messages"][-1]["content"] for each in lines(output)] == ["One."]
    prompts.write_text("two\n", "utf-8")
    with Loopback(stream(text_chunks("The answer is that", finish="length"))) as server:
        assert run(server) == 1
    assert [each["metadata"]["outcome"] for each in lines(output)] == ["answered"]
    assert "limit for one answer" in lines(tmp_path / "data.rejected.jsonl")[0]["metadata"]["flaw"]


@pytest.mark.parametrize(
    "text", ["my only notes", "one\ntwo", '{"a": 1}', '{"messages": [], "metadata": {}}\n']
)
def test_a_file_that_is_not_ours_stays_as_it_is(home, tmp_path, text, capsys):
    output = tmp_path / "notes.txt"
    output.write_text(text)
    assert main(["trajectories", "-o", str(output), "--consent"]) == 1
    assert output.read_text() == text
    assert "is not a file of trajectories" in capsys.readouterr().err


def test_a_file_has_one_form_and_each_session_once(home, tmp_path, capsys):
    for answer in ("One.", "Two."):
        with Hermes(ScriptedModel([answer])) as hermes:
            hermes.ask("What?")
    output = tmp_path / "data.jsonl"
    words = ["trajectories", "-o", str(output), "--consent"]
    name = hermes.session_id
    assert main([*words, name, name[:-1], name]) == 0
    assert [each["metadata"]["id"] for each in lines(output)] == [name]
    output.write_bytes(output.read_bytes()[:-1])  # killed before the line's end
    assert main(words) == 0
    assert len(lines(output)) == 2
    before = output.read_bytes()
    assert main([*words, "--form", "sharegpt"]) == 1
    assert output.read_bytes() == before
    short = tmp_path / "short.jsonl"
    assert main([*words[:2], str(short), "--consent", "--tokens", "50"]) == 0
    assert not short.exists()  # its system prompt alone is longer
    flaws = [each["metadata"]["flaw"] for each in lines(tmp_path / "short.rejected.jsonl")]
    assert flaws == ["too long", "too long"]
    for torn in (b"{", b'{"messa', before[:-40].split(b"\n")[-1]):
        output.write_bytes(before + torn)
        assert main(words) == 0
        assert output.read_bytes() == before


def test_prompts_are_read_from_files_of_all_kinds(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    odd = json.dumps({"prompt": "a\u2028b\x0cc"}, ensure_ascii=False)
    text = f'{{"prompt": "one"}}\r\n\r\n{odd}\n  two \n{{"prompt": " "}}\ntwo'
    prompts.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert list(_prompts(prompts)) == ["one", "a\u2028b\x0cc", "two", "two"]
    for bad in ("{", '{"text": 1}', '{"prompt": 1}'):
        prompts.write_text(f"one\n{bad}\n")
        with pytest.raises(ConfigError, match="line 2"):
            list(_prompts(prompts))
    assert name_of("a\ud800") != name_of("a?")


def test_what_is_led_is_kept_as_it_was_before_its_compression(home, tmp_path, monkeypatch, capsys):
    home.mkdir()
    (home / "config.yaml").write_text("model:\n  context_length: 12000\n")
    (tmp_path / "a.txt").write_text("\n".join(f"row {n} {'word ' * 20}" for n in range(200)))
    (tmp_path / "prompts.txt").write_text("Read it.")
    monkeypatch.chdir(tmp_path)
    reads = [("read_file", {"path": "a.txt", "offset": 1 + n, "limit": 60}) for n in range(4)]
    replies = [stream(tool_chunks(each), usage=False) for each in reads]
    slow = Reply(steps=[pause(0.5), *says("Done.").steps])
    with Loopback(*replies, says("Done."), slow, says("Done.")) as server:
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        words = ["--prompts", "prompts.txt", "-o", "data.jsonl", "--cwd", ".", "--tools", "files"]
        assert main(["trajectories", *words, "--model", "loopback"]) == 0
        assert "[shortened" in str(server.bodies[-1])
        (tmp_path / "prompts.txt").write_text("\n".join("Read it, abcdefg".split()))
        capsys.readouterr()
        assert main(["trajectories", *words, "--model", "loopback"]) == 0
        told = capsys.readouterr().err.splitlines()
        assert told[:3] == ["1 of 3", "2 of 3", "3 of 3"]  # whichever is led first
    found, *_ = lines(tmp_path / "data.jsonl")
    results = [each["content"] for each in found["messages"] if each["role"] == "tool"]
    assert [result.split()[0] for result in results] == ["1", "2", "3", "4"]
