"""Turns in a real kernel, with a real server that plays the model."""

from __future__ import annotations

import os
import sqlite3

import pytest

from tests.kernels import kernel
from tests.loopback import (
    Loopback,
    Reply,
    chunk,
    disconnect,
    event,
    failure,
    pause,
    stall,
    stream,
    text_chunks,
    tool_chunks,
)
from tests.patience import STOPS_WITHIN

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def server():
    with Loopback(stream(text_chunks("unset"))) as running:
        yield running


@pytest.fixture(scope="module")
def shared(server, tmp_path_factory):
    """One kernel for all the stories that leave it as they found it."""
    folder = tmp_path_factory.mktemp("work")
    with kernel(environment(server, folder), cwd=str(folder)) as running:
        assert running.run("%load_ext hermes_nb").status == "ok"
        yield running


def environment(server, folder, **more):
    env = {**os.environ, "HERMES_HOME": str(folder / "home"), "IPYTHONDIR": str(folder / "ipython")}
    env |= {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "loopback-model"}
    return {**env, **more}


@pytest.fixture
def plays(server):
    """Return a function that sets what the server answers next."""

    def set_replies(*replies):
        server.replies[:] = replies
        server.exchanges.clear()
        return server

    return set_replies


def ask(shared, prompt="hello", options="", **how):
    return shared.run(f"%%hermes --new {options}\n{prompt}", **how)


def sent(server, index=-1):
    return server.bodies[index]["messages"]


def test_an_answer_is_markdown_with_a_status_line(shared, plays):
    plays(stream(text_chunks("The answer is **42**.")))
    result = ask(shared, "what is it?", allow_stdin=True)
    assert result.status == "ok"
    assert "The answer is **42**." in result.markdown
    assert "loopback-model" in result.markdown or "loopback" in result.markdown
    assert "✓" in result.markdown
    assert "The answer is **42**." in result.text


@pytest.mark.parametrize(
    "prompt", ["{'a': {x!r}} {} {{}}", 'what\'s "this"? $HOME \\n %timeit !ls', "f'{1}'", "é 🦊"]
)
def test_prompts_are_just_text(shared, plays, prompt):
    server = plays(stream(text_chunks("ok")))
    assert ask(shared, prompt, "--no-context").status == "ok"
    assert sent(server)[-1]["content"].strip() == prompt
    assert shared.run(f"%hermes --new --no-context {prompt}").status == "ok"
    assert sent(server)[-1]["content"] == prompt


def test_code_runs_in_the_live_namespace_and_is_folded_away(shared, plays):
    server = plays(
        stream(tool_chunks(("run_python", {"code": "y = x * 2\ny"}))),
        stream(text_chunks("It is 42.")),
    )
    shared.run("x = 21")
    result = ask(shared, "double x", "--approve all", allow_stdin=True)
    assert result.status == "ok", result.error
    assert "42" in sent(server)[-1]["content"]
    assert "<details><summary>1 tool call</summary>" in result.markdown
    assert shared.run("print(y)").text.strip() == "42"
    assert "- x: int" in sent(server, 0)[-1]["content"]


def test_risky_calls_ask_below_the_cell(shared, plays):
    def call(n):
        return stream(tool_chunks(("run_python", {"code": f"made{n} = {n}"})))

    server = plays(call(1), call(2), call(3), stream(text_chunks("Done.")))
    result = ask(shared, "make them", answers=("y", "because I say no", "n"))
    assert result.status == "ok", result.error
    assert len(result.prompts) == 3
    results = [m["content"] for m in sent(server) if m["role"] == "tool"]
    assert "because I say no" in results[1]
    assert "declined" in results[2]
    assert (
        shared.run("print('made1' in globals(), 'made2' in globals())").text.strip() == "True False"
    )


def test_nobody_to_ask_means_no(shared, plays):
    server = plays(
        stream(tool_chunks(("run_python", {"code": "unasked = 1"}))),
        stream(text_chunks("Refused.")),
    )
    result = ask(shared, "do it")
    assert result.status == "ok"
    assert "approve all" in sent(server)[-1]["content"]
    assert "False" in shared.run("print('unasked' in globals())").text


def test_without_stdin_there_is_one_display_and_no_updates(shared, plays):
    plays(stream(text_chunks("word " * 50)))
    assert ask(shared).messages == 1


def test_five_hundred_tokens_are_few_messages(shared, plays):
    pieces = [chunk({"content": f"word{n} "}) for n in range(500)]
    steps = []
    for n, piece in enumerate(pieces):
        steps.append(event(piece))
        if n % 10 == 9:
            steps.append(pause(0.05))
    plays(Reply([*steps, event(chunk(finish="stop"))]))
    result = ask(shared, allow_stdin=True)
    assert "word499" in result.markdown
    assert 2 < result.messages <= 25


def test_stop_while_the_answer_streams(shared, plays):
    server = plays(Reply([event(chunk({"content": "The beginning "})), stall]))
    result = ask(shared, "tell me a story", allow_stdin=True, stop_on="The beginning")
    assert result.status == "error"
    assert result.stop_seconds < STOPS_WITHIN
    assert "The beginning" in result.markdown
    assert "Stopped" in result.markdown
    assert result.error["traceback"] == ["stopped"]
    server.replies[:] = [stream(text_chunks("Onwards."))]
    assert shared.run("%hermes go on").status == "ok"
    texts = [message["content"] for message in sent(server) if message["role"] == "assistant"]
    assert "The beginning" in texts[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import time\nfor _ in range(300): time.sleep(0.1)",
        "import asyncio\nawait asyncio.sleep(30)",
        "import subprocess\nsubprocess.run(['sleep', '30'])",
        "!sleep 30",
    ],
)
def test_stop_while_code_runs(shared, plays, code):
    code = f"print('begun')\n{code}"
    server = plays(stream(tool_chunks(("run_python", {"code": code}))), stream(text_chunks("no")))
    result = ask(
        shared, "run it", "--approve all", allow_stdin=True, stop_on="run_python", stop_delay=0.5
    )
    assert result.status == "error", result.text
    assert result.stop_seconds < STOPS_WITHIN
    assert len(server.exchanges) == 1
    server.replies[:] = [stream(text_chunks("fine"))]
    assert shared.run("%hermes and now?").status == "ok"
    roles = [message["role"] for message in sent(server)[1:]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_stop_while_a_command_runs(shared, plays):
    command = "echo $$ > pid; echo be''gun; sleep 60 & sleep 60"
    plays(stream(tool_chunks(("terminal", {"command": command}))), stream(text_chunks("no")))
    result = ask(shared, "run it", "--approve all", allow_stdin=True, stop_on="begun")
    assert result.status == "error"
    assert result.stop_seconds < STOPS_WITHIN
    alive = shared.run("!sleep 0.2; ps -o stat= -g $(cat pid) | grep -v Z | wc -l").text.strip()
    assert alive == "0"


def test_stop_while_a_question_is_open(shared, plays):
    plays(stream(tool_chunks(("run_python", {"code": "1"}))), stream(text_chunks("no")))
    result = ask(shared, "run it", allow_stdin=True, stop_on="Hermes wants to use")
    assert result.status == "error"
    assert result.stop_seconds < STOPS_WITHIN
    plays(stream(text_chunks("fine")))
    assert shared.run("%hermes hello").status == "ok"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            failure(
                401, {"error": {"message": "Incorrect API key provided: sk-abcdefghijklmnop1234"}}
            ),
            "refused the api key",
        ),
        (failure(400, {"error": {"message": "bad field"}}), "bad field"),
        (failure(200, b"<html><body>Welcome</body></html>"), "web page"),
    ],
)
def test_a_failed_turn_fails_its_cell_in_one_line(shared, plays, reply, text):
    plays(reply)
    result = ask(shared)
    assert result.status == "error"
    assert result.error["ename"] == "TurnFailed"
    assert len(result.error["traceback"]) == 1
    everything = str(result.error) + result.text + result.markdown
    assert text in everything.lower()
    assert "sk-abcdefghijklmnop1234" not in everything


def test_a_break_in_mid_stream_is_retried_and_nothing_doubles(shared, plays):
    broken = Reply([event(chunk({"content": "Half an "})), disconnect])
    server = plays(broken, stream(text_chunks("Whole answer.")))
    result = ask(shared, timeout=30)
    assert result.status == "ok"
    assert "Half" not in result.markdown
    assert len(server.exchanges) == 2


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("%%hermes\n   ", "the prompt is empty"),
        ("%hermes --frobnicate x", "there is no option --frobnicate"),
        ("%%hermes --approve sometimes\nx", "approve"),
        ("%%hermes --max-requests 0\nx", "above 0"),
        ("%%hermes --tools nonsense\nx", "no tool or toolset 'nonsense'"),
        ("%hermes statsu", "did you mean"),
        ("%hermes resume nobody", "no session 'nobody'"),
        ("%hermes approve maybe", "approve is 'maybe'"),
        ("%%hermes --api-key sk-abcdefghijklmnopqrstuvwx\nx", "does not belong in a notebook"),
    ],
)
def test_bad_input_is_one_line(shared, plays, cell, text):
    plays(stream(text_chunks("ok")))
    result = shared.run(cell)
    assert result.status == "error"
    shown = "\n".join(result.error["traceback"])
    assert text in shown + result.error["evalue"]
    assert len(shown.splitlines()) <= 2


def test_a_key_on_the_line_leaves_no_trace(shared, plays, tmp_path_factory):
    secret = "sk-" + "q7" * 20
    assert shared.run(f"%hermes --api-key {secret} hello").status == "error"
    trace = shared.run("%history -n 1-10000\nprint(In[-2], _i)").text
    assert secret not in trace
    found = shared.run("from IPython.paths import get_ipython_dir\nprint(get_ipython_dir())")
    folder = found.text.strip()
    database = sqlite3.connect(f"{folder}/profile_default/history.sqlite")
    rows = database.execute(
        "SELECT count(*) FROM history WHERE source_raw LIKE ?", (f"%{secret}%",)
    )
    assert rows.fetchone() == (0,)
    database.close()


def test_braces_in_line_prompts_are_not_expanded(shared, plays):
    server = plays(stream(text_chunks("ok")))
    shared.run("name = 'expanded'")
    shared.run("%hermes --new --no-context what is {name} and $name?")
    assert sent(server)[-1]["content"] == "what is {name} and $name?"


def test_a_question_is_not_a_request_for_help(shared, plays):
    server = plays(stream(text_chunks("ok")))
    cell = (
        'text = """\n%hermes not this?\n"""\n%hermes --no-context is it "this"?\nprint(repr(text))'
    )
    result = shared.run(cell)
    assert result.status == "ok"
    assert sent(server)[-1]["content"] == 'is it "this"?'
    assert "'\\n%hermes not this?\\n'" in result.text
    assert (
        "--max-requests" in str(shared.run("%hermes?").text)
        or shared.run("%hermes?").status == "ok"
    )


def test_commands_answer(shared, plays):
    plays(stream(text_chunks("The last answer.")))
    ask(shared)
    assert "The last answer." in shared.run("%hermes last").markdown
    status = shared.run("%hermes status").markdown
    assert "loopback-model" in status
    assert "session" in status
    assert "run_python" in shared.run("%hermes tools").markdown
    only = shared.run("%hermes tools kernel").markdown
    assert "read_file" not in only
    assert "read_file" in shared.run("%hermes tools all").markdown
    assert "%hermes doctor" in shared.run("%hermes help").markdown
    assert "hermes_nb" in shared.run("%hermes doctor").markdown
    assert "new session" in shared.run("%hermes new").markdown
    assert "hello" in shared.run("%hermes sessions").markdown
    assert "Resumed" in shared.run("%hermes resume").markdown
    assert "loopback-model" in shared.run("%hermes model").markdown
    assert (
        "--max-requests"
        in shared.run("print(get_ipython().find_line_magic('hermes').__doc__)").text
    )


def test_ten_reloads_leave_one_set_of_hooks(shared, plays):
    server = plays(stream(text_chunks("once")))
    for _ in range(10):
        shared.run("%reload_ext hermes_nb")
    shared.run("%hermes hello")
    assert len(server.exchanges) == 1
    shared.run("%unload_ext hermes_nb")
    assert (
        shared.run("%hermes hello").status == "error"
        or "not found" in shared.run("%hermes hello").text
    )
    shared.run("%load_ext hermes_nb")
    assert shared.run("%hermes hello").status == "ok"


def test_the_conversation_survives_a_kernel_restart(server, plays, tmp_path):
    notebook = tmp_path / "work.ipynb"
    notebook.write_text("{}", encoding="utf-8")
    env = environment(server, tmp_path, JPY_SESSION_NAME=str(notebook))
    plays(stream(text_chunks("Noted: blue.")))
    with kernel(env, cwd=str(tmp_path)) as first:
        first.run("%load_ext hermes_nb")
        assert first.run("%hermes my colour is blue").status == "ok"
    plays(stream(text_chunks("Blue.")))
    with kernel(env, cwd=str(tmp_path)) as second:
        second.run("%load_ext hermes_nb")
        result = second.run("%hermes what is my colour?")
        assert "Resumed" in result.markdown
        roles = [message["role"] for message in sent(server)]
        assert roles == ["system", "user", "assistant", "user"]
        plays(stream(text_chunks("Who?")))
        second.run("%hermes --new who am I?")
        assert [message["role"] for message in sent(server)] == ["system", "user"]


def test_without_weights_and_without_a_yes_the_cell_fails_with_the_ways_out(server, tmp_path):
    env = environment(server, tmp_path, HERMES_NB_MODEL="embedded", XDG_CACHE_HOME=str(tmp_path))
    env.pop("HERMES_NB_GGUF", None)
    with kernel(env, cwd=str(tmp_path)) as running:
        running.run("%load_ext hermes_nb")
        for how in ({}, {"answers": ("n",)}):
            result = running.run("%hermes hello", **how)
            assert result.status == "error"
            assert "HERMES_NB_FETCH_WEIGHTS=1" in result.error["evalue"]
            assert len(result.error["traceback"]) == 1
        assert "491 MB" in result.prompts[0]
    assert not list(tmp_path.rglob("*.gguf*"))


def test_a_deleted_working_directory_is_said(server, plays, tmp_path):
    work = tmp_path / "gone"
    work.mkdir()
    plays(stream(text_chunks("ok")))
    with kernel(environment(server, tmp_path), cwd=str(work)) as running:
        running.run("%load_ext hermes_nb")
        running.run("import os; os.rmdir(os.getcwd())")
        result = running.run("%hermes hello")
        assert result.status == "error"
        assert "working directory" in result.error["evalue"]
        running.run(f"%cd {tmp_path}")
        assert running.run("%hermes hello").status == "ok"
