"""Turns next to the user's cells, on two versions of ipykernel.

The tests look at where each output appears, what an interrupt stops, and what the model reads.
"""

from __future__ import annotations

import pytest

from tests.beside import ASK, PINS, beside_kernel

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]

LONG = "'word ' * 60"
RUNNING, ASKING = "◌", "‖"


@pytest.fixture(scope="module", params=list(PINS))
def cells(request, tmp_path_factory):
    with beside_kernel(tmp_path_factory.mktemp("beside"), request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(cells):
    cells.control(stop="")
    cells.run("%hermes wait")
    cells.run("%hermes new")
    cells.errors.clear()
    cells.order.clear()


def begin(cells, steps, *, delay=0.05, prompt="What is y?", cell="turn"):
    """Start a turn next to the cells; its cell must end while it runs."""
    cells.run(f"plays({steps}, delay={delay})")
    cells.run(f"{ASK}{prompt}", cell)
    assert RUNNING in cells.text(cell)
    assert cells.outputs[cell][0]["marks"]["hermes_beside"]


def end(cells, cell="turn"):
    """Wait for the end of a turn; return what its cell shows."""
    cells.until(lambda: not {RUNNING, ASKING} & {*cells.text(cell)})
    return cells.text(cell)


def sent(cells):
    """Return the user's messages in the session."""
    printed = cells.run("print([m.text for m in agent().session.messages if m.role == 'user'])")
    return eval(printed)


def test_cells_run_while_the_model_answers(cells):
    begin(cells, LONG)
    assert cells.run("print('mine')\n6 * 7") == "mine\n\n42"
    assert RUNNING in cells.text("turn")
    assert "word" in end(cells)
    assert cells.outputs["turn"][0]["marks"] == {}


def test_each_output_appears_in_its_own_cell(cells):
    agents = (
        "print('AGENT 1')\nfor i in range(4): await asyncio.sleep(0.1)\nprint('AGENT 2')\nz = 1"
    )
    begin(cells, f"code({agents!r}), 'All is done.'", delay=0.01)
    mine = "for i in range(6):\n    await asyncio.sleep(0.05)\n    print('user', i)\n'VALUE'"
    first, second = cells.send(mine, "async"), cells.send("print('sync')\n5", "sync")
    text = end(cells)
    cells.until(lambda: cells.done(second))
    assert "All is done." in text
    assert "AGENT 1\nAGENT 2" in text
    assert "user" not in text
    lines = "".join(f"user {i}\n" for i in range(6))
    assert cells.text(first) == f"{lines}\n'VALUE'"
    assert cells.text(second) == "sync\n\n5"
    assert cells.count[second] == cells.count[first] + 1
    told = cells.run("print(_, Out[max(Out)], max(Out), z)")
    assert told == f"5 5 {cells.count[second]} 1\n"


def test_run_all_keeps_its_order(cells):
    cells.run("log = []")
    begin(cells, "code(\"log.append('AGENT')\"), 'Done.'", delay=0.01)
    names = [cells.send(f"log.append({n}); time.sleep(0.05)", f"all {n}") for n in range(6)]
    cells.until(lambda: all(map(cells.done, names)))
    end(cells)
    assert cells.run("print(log)") == "[0, 1, 2, 3, 4, 5, 'AGENT']\n"


def test_output_that_a_cell_captures_is_not_the_turns(cells):
    begin(cells, LONG)
    capture = "from IPython.utils.capture import capture_output\nwith capture_output() as seen:\n"
    cells.run(f"{capture}    for i in range(8):\n        await asyncio.sleep(0.1)\n    print('in')")
    assert cells.run("print(repr(seen.stdout), len(seen.outputs))") == "'in\\n' 0\n"
    assert "word" in end(cells)


def test_threads_of_the_user_do_not_print_into_the_turn(cells):
    work = "for i in range(6):\n        time.sleep(0.1)\n        print('thread', i)"
    cells.run(f"def work():\n    {work}\nt = threading.Thread(target=work)\nt.start()", "thread")
    begin(cells, "code(\"print('AGENT'); time.sleep(0.4); print('END')\"), 'Done.'", delay=0.01)
    end(cells)
    cells.run("t.join()")
    view = cells.outputs["turn"][0]["text"]
    assert "AGENT\nEND" in view
    assert "thread" not in view
    everywhere = "".join(cells.text(each) for each in list(cells.outputs))
    assert everywhere.count("thread ") == 6


def test_plots_of_the_agent_appear_in_the_turns_cell(cells):
    cells.run("%matplotlib inline\nimport matplotlib.pyplot as plt")
    begin(cells, "code(\"plt.figure(); plt.plot([1, 2]); plt.title('AGENT');\"), 'Drawn.'")
    mine = "f = plt.figure(); plt.plot([3, 1])\nfor i in range(8): await asyncio.sleep(0.1)"
    cells.run(f"{mine}\nprint(plt.get_fignums())", "mine")
    assert end(cells).count("PNG") == 1
    assert cells.text("mine") == "[1]\n\nPNG"


def test_an_interrupt_between_cells_stops_the_turn(cells):
    begin(cells, LONG)
    cells.until(lambda: "word" in cells.text("turn"))
    cells.interrupt()
    assert "Stopped." in end(cells)
    cells.interrupt()  # nothing runs any more
    assert cells.run("print('alive')") == "alive\n"


@pytest.mark.parametrize("pause", ["time.sleep(0.05)", "await asyncio.sleep(0.05)"])
def test_an_interrupt_in_a_users_cell_stops_that_alone(cells, pause):
    begin(cells, LONG, delay=0.1)
    cells.send(f"print('ready')\nfor i in range(200): {pause}", "mine")
    cells.until(lambda: "ready" in cells.text("mine"))
    cells.rest(0.2)
    cells.interrupt()
    cells.until(lambda: cells.done("mine"))
    assert cells.errors["mine"] in ("KeyboardInterrupt", "CancelledError")
    assert RUNNING in cells.text("turn")
    assert "word" in end(cells)


@pytest.mark.parametrize("how", ["interrupt", "stop"])
@pytest.mark.parametrize("pause", ["time.sleep(0.05)", "await asyncio.sleep(0.05)"])
def test_stopping_the_agents_code_lets_the_waiting_cell_run(cells, pause, how, tmp_path):
    mark = f"import pathlib; pathlib.Path({str(tmp_path / 'runs')!r}).touch()"
    begin(
        cells, f"code({mark + chr(10) + 'for i in range(400): ' + pause!r}), 'Never.'", delay=0.01
    )
    cells.until((tmp_path / "runs").exists)
    mine = cells.send("print('mine')", "mine")
    cells.rest(0.2)
    assert not cells.done(mine)
    if how == "interrupt":
        cells.interrupt()
    else:
        assert cells.control(stop="turn")["stopped"] == 1
    cells.until(lambda: cells.done(mine))
    assert cells.text(mine) == "mine\n"
    assert mine not in cells.errors
    assert "Never." not in end(cells)


def test_stop_behind_a_users_cell_leaves_the_cell_alone(cells):
    begin(cells, LONG, delay=0.1)
    mine = cells.send("time.sleep(0.6); print('mine')", "mine")
    cells.rest(0.2)
    assert cells.control(stop="turn") | {"delayed": True} == cells.control(stop="turn")
    cells.until(lambda: cells.done(mine))
    assert cells.text(mine) == "mine\n"
    assert "Stopped." in end(cells)


def test_stop_ends_a_turn_for_which_its_cell_waits(cells):
    cells.run(f"plays({LONG}, delay=0.1)")
    cells.send("%%hermes --approve all\nTell me.", "turn")
    cells.until(lambda: "word" in cells.text("turn"))
    assert cells.control(stop="turn")["stopped"] == 1
    cells.until(lambda: cells.done("turn"))
    assert "Stopped." in cells.text("turn")
    assert "turn" not in cells.errors  # its view says it


def test_a_message_reaches_the_model_before_its_next_request(cells):
    begin(cells, "code('y = 1'), 'The answer is long. ' * 3, 'Now with tea.'", delay=0.1)
    mine = cells.send("time.sleep(0.8)", "mine")
    cells.rest(0.2)
    assert cells.control(steer="use y = 3")["steered"]
    cells.until(lambda: cells.done(mine))
    cells.until(lambda: "answer" in cells.text("turn"))
    assert cells.run("%hermes steer and with tea") == "Hermes reads this before its next request."
    text = end(cells)
    assert "Now with tea." in text
    assert "*You added:* use y = 3" in text
    assert [each.splitlines()[-1] for each in sent(cells)][1:] == ["use y = 3", "and with tea"]
    assert not cells.control(steer="too late")["steered"]
    assert cells.run("print(agent().session.agent.turns)") == "1\n"


def test_a_message_that_the_turn_did_not_read_goes_with_the_next_prompt(cells):
    begin(cells, LONG, delay=0.1)
    cells.until(lambda: "word" in cells.text("turn"))
    assert cells.control(steer="in kilograms")["steered"]
    cells.control(stop="turn")
    assert "Your next prompt includes it." in end(cells)
    begin(cells, "'Yes.'", delay=0.3, prompt="Again", cell="next")
    end(cells, "next")
    assert [each.splitlines()[-1] for each in sent(cells)][-1] == "in kilograms"


def test_a_turn_continues_when_its_cell_is_released(cells):
    cells.run(f"plays(code('await asyncio.sleep(0.5); w = 5'), {LONG}, delay=0.05)")
    cells.send("%%hermes --approve all\nTell me.", "turn")
    cells.until(lambda: "run_python" in cells.text("turn"))
    assert cells.control(detach="turn")["running"] == 1
    cells.until(lambda: cells.done("turn"))
    assert RUNNING in cells.text("turn")
    assert "turn" not in cells.errors
    assert cells.run("print('mine')") == "mine\n"
    assert "word" in end(cells)
    assert cells.run("print(w)") == "5\n"


def test_turns_of_one_session_wait_in_line(cells):
    first = "'The first answer, which takes a while.'"
    cells.run(f"plays({first}, 'The second.', delay=0.1)")
    cells.run(f"{ASK}one", "one")
    cells.run(f"{ASK}two", "two")
    assert f"waiting for &#91;{cells.count['one']}&#93;" in cells.text("two")
    assert "The second." in end(cells, "two")
    assert "The first" in cells.text("one")


def test_a_cell_can_wait_for_the_turns(cells):
    begin(cells, "code('v = 5'), 'Done.'", delay=0.02)
    assert cells.run("%hermes wait\nprint('v is', v)") == "v is 5\n"
    assert cells.run("%hermes stop") == "No turn is running."


def test_a_command_shows_its_messages_in_its_own_cell(cells):
    begin(cells, LONG)
    assert "Approvals" in cells.run("%hermes approve edits")
    assert "Approvals" not in end(cells)


def test_errors_of_a_turn_are_shown_in_its_view(cells):
    cells.run("plays(RuntimeError('boom'))")
    cells.run(f"{ASK}Fail", "turn")
    assert "**Failed:** RuntimeError: boom" in end(cells)
    cells.run(f"%config HermesMagics.background = True\nplays({LONG})")
    cells.run("%%hermes --prefill missing.json\nHello", "early")
    cells.run("%config HermesMagics.background = False")
    assert "missing.json" in end(cells, "early")
    assert "early" not in cells.errors


def ask(cells, steps="code('q = 1'), 'It is done.'", options=""):
    """Start a turn that asks for approval where no page can show the question."""
    cells.run("globals().pop('q', None)")
    cells.run(f"plays({steps}, delay=0.01)")
    cells.run(f"%%hermes --background --approve ask {options}\nRun it", "turn")
    cells.until(lambda: "%hermes no" in cells.text("turn"))


def test_a_command_answers_a_question_that_no_page_shows(cells):
    ask(cells)
    assert "q = 1" in cells.text("turn")
    assert cells.run("print('q' in globals())") == "False\n"
    assert cells.run("%hermes yes") == f"Answered the question of [{cells.count['turn']}]."
    assert "It is done." in end(cells)
    assert cells.run("print(q)") == "1\n"
    cells.run("%hermes yes", "late")
    assert cells.errors["late"] == "ConfigError"


def test_the_reason_of_a_denial_reaches_the_model(cells):
    ask(cells, "code('q = 1'), 'Not run.'")
    cells.run("%hermes no yes is not my answer")
    assert "Not run." in end(cells)
    assert cells.run("print('q' in globals())") == "False\n"
    read = cells.run("print([m.text for m in agent().session.messages if m.role == 'tool'])")
    assert "yes is not my answer" in read


def test_waiting_for_the_turns_ends_at_a_question(cells):
    ask(cells)
    assert "Answer with" in cells.run("%hermes wait")
    cells.run("%hermes yes maybe", "unclear")
    assert cells.errors["unclear"] == "ConfigError"
    cells.run("%hermes yes")
    cells.run("%hermes wait")
    assert cells.run("print(q)") == "1\n"


def test_a_question_with_choices_takes_a_number_or_words(cells):
    steps = "call('clarify', question='Which file?', choices=['2023', '2024']), 'It is done.'"
    ask(cells, steps, "--tools default,clarify")
    assert "2. 2024" in cells.text("turn")
    cells.run("%hermes yes 2")
    assert "It is done." in end(cells)
    read = cells.run("print([m.text for m in agent().session.messages if m.role == 'tool'])")
    assert "2024" in read
    cells.run("%hermes tools default")


def test_a_turn_can_be_stopped_while_it_asks(cells):
    ask(cells)
    cells.run("%hermes stop")
    assert "Stopped." in end(cells)
    cells.run("%hermes yes", "late")
    assert cells.errors["late"] == "ConfigError"
    assert cells.run("print('q' in globals())") == "False\n"


def test_code_of_the_agent_cannot_answer_its_questions(cells):
    answers = (
        "import threading, time\n"
        "def answer():\n"
        "    for _ in range(40):\n"
        "        time.sleep(0.05)\n"
        "        try:\n"
        "            agent_ = hermes_magics(get_ipython()).agent\n"
        "            found = agent_.approver.typed.open\n"
        "        except Exception as error: told.append(repr(error)); continue\n"
        "        if found:\n"
        "            try: asyncio.run(get_ipython().run_line_magic('hermes', 'yes'))\n"
        "            except BaseException as error: told.append(repr(error)); return\n"
        "told = []\n"
        "threading.Thread(target=answer).start()"
    )
    cells.run(f"plays(code({answers!r}), code('q = 1'), 'Done.', delay=0.01)")
    cells.run("globals().pop('q', None)")
    cells.run("%%hermes --background --approve ask\nRun it", "turn")
    cells.until(lambda: "%hermes no" in cells.text("turn"))
    cells.run("%hermes yes")
    cells.until(lambda: cells.text("turn").count("%hermes no") == 2)
    cells.until(lambda: "ConfigError" in cells.run("print(told)"))
    assert cells.run("print('q' in globals())") == "False\n"
    cells.run("%hermes no")
    end(cells)


@pytest.mark.parametrize("options", ["--into answer", "--quiet"])
def test_turns_whose_result_code_needs_run_in_order(cells, options):
    cells.run("plays('Forty-two.')")
    cells.run(f"%%hermes --background {options}\nWhat is it?", "turn")
    assert RUNNING not in cells.text("turn")
    assert cells.run("print(agent().turn.text)") == "Forty-two.\n"


def test_stop_names_the_users_cell_behind_which_it_waits(cells):
    begin(cells, LONG, delay=0.1)
    mine = cells.send("time.sleep(2.5); print('mine')", "mine")
    cells.rest(0.3)
    cells.control(stop="turn")
    cells.until(lambda: "stopping, after your cell" in cells.text("turn"))
    assert not cells.done(mine)
    cells.until(lambda: cells.done(mine))
    assert "Stopped." in end(cells)


COMPILED = "import hashlib; hashlib.pbkdf2_hmac('sha1', b'a', b'b', 6_000_000)"


def test_stop_names_compiled_code_that_does_not_notice_it(cells):
    begin(cells, f"code({COMPILED!r}), 'Never.'", delay=0.01)
    cells.until(lambda: "hashlib" in cells.text("turn"))
    cells.rest(0.5)
    assert cells.control(stop="turn")["stopped"] == 1
    cells.until(lambda: "stopping, waiting for compiled code in run_python" in cells.text("turn"))
    assert "Never." not in end(cells)


def test_the_command_stop_waits_for_the_end_of_the_turns(cells):
    begin(cells, LONG, delay=0.1)
    assert cells.run("%hermes stop\nprint(agent().running)") == "Stopped.\n[]\n"
