"""`jupyter hermes run PROMPT`: a turn from a shell, its output, its questions, its exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import sys

import pexpect
import pytest
from hermes_nb.cli.main import main
from hermes_nb.models.cassette import is_miss

from tests.cli.conftest import KEY, gone, numbers_in, start
from tests.loopback import Reply, calls, chunk, event, failure, says, stall
from tests.patience import ended


def wants_to_write():
    return calls(("write_file", {"path": "made.txt", "content": "x"}))


def prompts_of(server):
    return [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "user"]


def test_a_pipe_gets_the_answer_alone(serve, capsys):
    server = serve(calls(("list_files", {})), says(f"Two \x1b[31mfiles, {KEY}."))
    assert main(["run", "how many?"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Two ")
    assert KEY not in out
    assert "\x1b" not in out
    assert len(server.bodies) == 2


def test_the_prompt_may_come_from_stdin(serve, monkeypatch):
    server = serve(says("Yes."))
    monkeypatch.setattr(sys, "stdin", io.StringIO("is it\nso?"))
    assert main(["run", "-"]) == 0
    assert "is it\nso?" in str(prompts_of(server)[0])


def test_events_as_json_lines(serve, capsys):
    serve(wants_to_write(), says(f"Done with {KEY}."))
    assert main(["run", "--json", "--approve", "all", "go"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [lines[0]["event"], lines[-1]["event"]] == ["TurnStarted", "TurnEnded"]
    assert lines[-1]["reason"] == "answered"
    added = [line["message"] for line in lines if line["event"] == "MessageAdded"]
    assert [message["role"] for message in added] == ["user", "assistant", "tool", "assistant"]
    assert KEY not in json.dumps(lines)


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_nobody_to_ask_is_a_no(serve, tmp_path, capsys, how):
    server = serve(wants_to_write(), says("It was refused."))
    assert main(["run", *how, "go"]) == 3
    assert capsys.readouterr().err == "refused: write_file made.txt\n"
    assert not (tmp_path / "made.txt").exists()
    assert "--approve all" in server.bodies[-1]["messages"][-1]["content"]
    serve(wants_to_write(), says("Made."))
    assert main(["run", "--approve", "edits", "go"]) == 0
    assert (tmp_path / "made.txt").exists()


def test_a_session_goes_on(serve, capsys):
    server = serve(says("Noted."))
    assert main(["run", "--session", "plans", "remember 42"]) == 0
    server = serve(says("42."))
    assert main(["run", "--session", "plans", "what was it?"]) == 0
    assert len(prompts_of(server)) == 2
    capsys.readouterr()
    assert main(["sessions", "--json"]) == 0
    (stored,) = json.loads(capsys.readouterr().out)
    assert (stored["title"], stored["messages"]) == ("plans", 4)


def test_a_session_whose_name_could_be_several_is_asked_for(serve, capsys):
    server = serve(says("Noted."))
    assert main(["run", "one"]) == 0
    assert main(["run", "two"]) == 0
    asked = len(server.bodies)
    capsys.readouterr()
    assert main(["run", "--session", "20", "go on"]) == 1
    assert "several sessions match '20'" in capsys.readouterr().err
    assert len(server.bodies) == asked, "nothing is sent, and no session named 20 is begun"


def test_an_error_cannot_steer_the_terminal(home, capsys):
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text('context: {engine: "\\e[2Jwiped"}', encoding="utf-8")
    assert main(["run", "--model", "m", "go"]) == 1
    said = capsys.readouterr().err
    assert "wiped" in said and "\x1b" not in said


def test_a_standing_budget_holds_for_prompts_as_well(serve, monkeypatch, capsys):
    server = serve(says("never"))
    monkeypatch.setenv("HERMES_NB_BUDGET_TOKENS", "10")
    assert main(["run", "go"]) == 1
    assert server.bodies == []


def test_a_failed_turn(serve, capsys):
    serve(failure(401, "bad key " + KEY))
    assert main(["run", "go"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert KEY not in said.err
    assert "Traceback" not in said.err


def test_recorded_and_replayed(serve, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(tmp_path / "story.jsonl"))
    serve(says("Recorded."))
    assert main(["run", "--cassette", "record", "go"]) == 0
    monkeypatch.setenv("HERMES_NB_BASE_URL", "http://127.0.0.1:9/v1")
    assert main(["run", "--cassette", "replay", "go"]) == 0
    assert capsys.readouterr().out == "Recorded.\nRecorded.\n"
    assert main(["run", "--cassette", "replay", "something else"]) == 3
    assert "no recording in story.jsonl fits" in capsys.readouterr().err
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(tmp_path / "none.jsonl"))
    assert main(["run", "--cassette", "replay", "go"]) == 3
    assert not is_miss("bad request: no such model")


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        (["run", " "], "empty"), (["run", "go", "--output", "x"], "--output cannot be used"),
        (["run", "go", "-p", "a", "1"], "-p cannot be used"),
        (["run", "n.ipynb", "--session", "x"], "--session cannot be used"),
    ],
)  # fmt: skip
def test_what_makes_no_sense(words, gist, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.ipynb").touch()
    assert main(words) == 2
    assert gist in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["run"], ["run", "x", "--max-requests", "0"], ["run", "x", "--approve", "maybe"], []]
)
def test_what_argparse_refuses(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_ends_the_turn_and_its_command(serve, tmp_path, request, number):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not that of `nohup pytest`
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    command = "sleep 300 & echo $! > pid; wait"
    serve(calls(("terminal", {"command": command})), says("never"))
    process = start(["run", "--approve", "all", "go"], tmp_path)
    (pid,) = numbers_in(tmp_path / "pid", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (130, "")
    assert "stopped" in err
    assert "Traceback" not in err
    assert gone(pid)
    assert main(["sessions"]) == 0


@pytest.mark.slow
def test_a_terminal_streams_and_asks(serve, tmp_path):
    slow = Reply([*(event(chunk({"content": part})) for part in ("Made ", "it. ")), stall])
    serve(wants_to_write(), wants_to_write(), slow)
    child = pexpect.spawn(
        sys.executable, ["-m", "hermes_nb.cli", "run", "make it"],
        cwd=str(tmp_path), encoding="utf-8", timeout=60, dimensions=(40, 200),
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    try:
        child.expect("Hermes wants to use write_file")
        child.expect("or say why not: ")
        child.sendline("not yet")
        child.expect("or say why not: ")
        assert not (tmp_path / "made.txt").exists()
        child.sendline("y")
        child.expect(r"Made it\.")
        assert (tmp_path / "made.txt").exists()
        child.sendintr()
        child.expect("stopped")
        child.expect(pexpect.EOF)
    finally:
        ended(child)
    assert child.exitstatus == 130


@pytest.mark.parametrize("learn", [["--learn"], []])
def test_a_prompt_may_be_learned_from(serve, monkeypatch, capsys, home, learn):
    monkeypatch.setenv("HERMES_NB_MEMORY_NUDGE_INTERVAL", "2")
    saved = {"action": "add", "target": "user", "content": "Answers in German, please."}
    serve(says("One."))
    assert main(["run", "--session", "talk", *learn, "one"]) == 0
    server = serve(says("Two."), calls(("memory", saved)), says("Saved."))
    assert main(["run", "--session", "talk", *learn, "two"]) == 0
    told = capsys.readouterr()
    assert told.out == "One.\nTwo.\n"
    assert ("review saved: memory: add user" in told.err) is bool(learn)
    assert (home / "memories" / "USER.md").exists() is bool(learn)
    assert len(server.bodies) == (3 if learn else 1)
