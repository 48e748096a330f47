"""Turns in a real kernel, with a real server that plays the model, as a newcomer takes them."""

from __future__ import annotations

import re
import sqlite3

import pytest

from tests.faults.cells import served_kernel
from tests.kernels import Kernel
from tests.loopback import Loopback, Reply, calls, chunk, event, failure, pause, says

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def server():
    with Loopback(says("unset")) as running:
        yield running


@pytest.fixture(scope="module")
def shared(server, tmp_path_factory):
    """One kernel for all the stories that leave it as they found it."""
    with served_kernel(server, tmp_path_factory.mktemp("work")) as running:
        yield running


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
    plays(says("The answer is **42**."))
    result = ask(shared, "what is it?", allow_stdin=True)
    assert result.status == "ok"
    assert "The answer is **42**." in result.markdown and "The answer is **42**." in result.text
    assert "✓" in result.markdown and "loopback" in result.markdown


def test_the_first_word_is_shown_as_soon_as_it_is_there(shared, plays):
    views = "import hermes_nb.notebook.display.views as views; views.INTERVAL = "
    shared.run(f"{views}60")
    plays(Reply([event(chunk({"content": "Once upon a time "})), pause(20)]))
    result = ask(shared, "tell", stop_on="Once upon", timeout=15, allow_stdin=True)
    assert "Stopped" in result.text
    shared.run(f"{views}0.12")


@pytest.mark.parametrize(
    "prompt",
    [
        *("{'a': {x!r}} {} {{}}", "what is {In} and $In?", "f'{1}'", "é 🦊"),
        'what\'s "this"? $HOME \\n %timeit !ls',
    ],
)
def test_prompts_are_just_text(shared, plays, prompt):
    server = plays(says("ok"))
    assert ask(shared, prompt, "--no-context").status == "ok"
    assert sent(server)[-1]["content"].strip() == prompt
    assert shared.run(f"%hermes --new --no-context {prompt}").status == "ok"
    assert sent(server)[-1]["content"] == prompt


def test_code_runs_in_the_live_namespace_and_is_folded_away(shared, plays):
    server = plays(calls(("run_python", {"code": "y = x * 2\ny"})), says("It is 42."))
    shared.run("x = 21")
    result = ask(shared, "double x", "--approve all", allow_stdin=True)
    assert result.status == "ok", result.error
    assert "42" in sent(server)[-1]["content"]
    assert "<details><summary>1 tool call</summary>" in result.markdown
    assert shared.run("print(y)").text.strip() == "42"
    assert "- x: int" in sent(server, 0)[-1]["content"]


def test_risky_calls_ask_below_the_cell_and_answers_stay_in_their_lines(shared, plays):
    makes = [calls(("run_python", {"code": f"made{n} = {n}"})) for n in (1, 2, 3)]
    server = plays(*makes, says("Done."))
    result = ask(shared, "make them", answers=("y", "because I say no", "n"))
    assert result.status == "ok", result.error
    assert len(result.prompts) == 3
    results = [m["content"] for m in sent(server) if m["role"] == "tool"]
    assert "because I say no" in results[1] and "declined" in results[2]
    denied = "⊘ <b>run_python</b> <code>made2 = 2</code> · denied: because I say no · "
    assert denied in result.markdown
    made = shared.run("print('made1' in globals(), 'made2' in globals())")
    assert made.text.strip() == "True False"


def test_five_hundred_tokens_are_few_messages(shared, plays):
    steps = []
    for n in range(500):
        steps.append(event(chunk({"content": f"word{n} "})))
        if n % 10 == 9:
            steps.append(pause(0.05))
    plays(Reply([*steps, event(chunk(finish="stop"))]))
    result = ask(shared, allow_stdin=True)
    assert "word499" in result.markdown
    assert 2 < result.messages <= 25


def test_fast_calls_share_updates(shared, plays):
    views = "import hermes_nb.notebook.display.views as views"
    shared.run(f"{views}; views.INTERVAL = views.EARLY = views.LIVE_EVERY = 60")
    plays(*[calls(("list_files", {"pattern": f"{n}*"})) for n in range(6)], says("Done."))
    result = ask(shared, allow_stdin=True)
    shared.run("views.INTERVAL, views.EARLY, views.LIVE_EVERY = 0.12, 1.0, 0.5")
    assert "6 tool calls" in result.markdown
    assert result.messages == 2, "the first call and the end"


def test_the_clock_runs_while_code_holds_up_the_kernel(shared, plays, monkeypatch):
    plays(calls(("run_python", {"code": "import time\ntime.sleep(5)"})), says("Done."))
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
    refused = failure(401, {"error": {"message": "Incorrect API key provided."}})
    server = plays(refused, says("Hello."))
    result = ask(shared)
    assert result.status == "error"
    assert "`%hermes doctor` shows where the key comes from" in result.error["evalue"]
    assert len(result.error["traceback"]) == 1
    address = f"'HERMES_NB_BASE_URL': '', 'OPENAI_BASE_URL': {server.url!r}"
    old = "import os; old = dict(os.environ)\n"
    shared.run(f"{old}os.environ.update({{{address}, 'OPENAI_API_KEY': 'a-newer-key'}})")
    assert "Hello." in ask(shared).markdown
    assert server.exchanges[-1].headers["authorization"] == "Bearer a-newer-key"
    shared.run("os.environ.clear(); os.environ.update(old)\n%hermes model loopback-model")


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("%hermes --frobnicate x", "there is no option --frobnicate"),
        ("%%hermes --approve sometimes\nx", "approve"),
        ("%%hermes --max-requests 0\nx", "above 0"),
        ("%%hermes --tools nonsense\nx", "no tool or toolset 'nonsense'"),
        ("%hermes statsu", "did you mean"),
        ("%hermes resume nobody", "no session 'nobody'"),
        (
            "%hermes approve maybe",
            "no `%hermes approve maybe`; the command takes ask, edits, all, never",
        ),
        ("%%hermes --api-key sk-abcdefghijklmnopqrstuvwx\nx", "does not belong in a notebook"),
    ],
)
def test_bad_input_is_one_line(shared, plays, cell, text):
    plays(says("ok"))
    result = shared.run(cell)
    assert result.status == "error"
    shown = "\n".join(result.error["traceback"])
    assert text in shown + result.error["evalue"]
    assert len(shown.splitlines()) <= 2


def test_a_key_on_the_line_leaves_no_trace(shared):
    secret = "sk-" + "q7" * 20
    assert shared.run(f"%hermes --api-key {secret} hello").status == "error"
    assert secret not in shared.run("%history -n 1-10000\nprint(In[-2], _i)").text
    found = shared.run("from IPython.paths import get_ipython_dir\nprint(get_ipython_dir())")
    database = sqlite3.connect(f"{found.text.strip()}/profile_default/history.sqlite")
    where = "SELECT count(*) FROM history WHERE source_raw LIKE ?"
    assert database.execute(where, (f"%{secret}%",)).fetchone() == (0,)
    database.close()


def test_a_question_is_not_a_request_for_help(shared, plays):
    server = plays(says("ok"))
    text = 'text = """\n%hermes not this?\n"""\n'
    result = shared.run(f'{text}%hermes --no-context is it "this"?\nprint(repr(text))')
    assert result.status == "ok"
    assert sent(server)[-1]["content"] == 'is it "this"?'
    assert "'\\n%hermes not this?\\n'" in result.text


def test_commands_answer(shared, plays):
    plays(says("The last answer."))
    ask(shared)
    assert shared.run("%%hermes --tools nonsense\nx").status == "error"  # no turn has begun
    for command, told in {
        "last": "The last answer.",
        "status": "loopback-model",
        "tools": "run_python",
        "tools all": "read_file",
        "help": "%hermes doctor",
        "doctor": "hermes_nb",
        "new": "new session",
        "sessions": "hello",
        "resume": "Resumed",
        "model": "loopback-model",
    }.items():
        assert told in shared.run(f"%hermes {command}").markdown, command
    assert "read_file" not in shared.run("%hermes tools kernel").markdown


def test_a_turn_says_what_the_checkpoints_have_of_it_and_its_undo_takes_that_back(shared, plays):
    note = {"action": "add", "content": "Data lives in data/."}
    content = {"path": "clean.py", "content": "a = 1\nb = 2\n"}
    plays(calls(("write_file", content), ("memory", note)), says("Done."))
    shown = ask(shared, options="--approve all --tools all")
    told = "clean.py added +2 · 1 note learned · %hermes undo 1 · %hermes memory undo"
    assert told in shown.text
    head = 'clean.py added [+]2 · 1 note learned · <code title="turn 1 of (.*?)">%hermes undo 1<'
    session = re.search(head, shown.markdown)[1]
    assert "+ a = 1\n+ b = 2</span>" in shown.markdown
    shared.run("%hermes memory undo")
    shared.run("%hermes new")
    assert "is undone" in shared.run(f"%hermes undo 1 of {session}").text
    plays(says("Nothing to do."))
    assert "%hermes undo" not in ask(shared).text
