"""Turns of different sessions that run at the same time, in a real kernel.

The tests look at what each cell shows, what runs, and what is stored. bench/interleavings.py plays
many more rounds.
"""

from __future__ import annotations

import json

import pytest

from tests.beside import PINS, beside_kernel, scripts

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]

RUNNING = "◌"


@pytest.fixture(scope="module", params=list(PINS))
def cells(request, tmp_path_factory):
    with beside_kernel(tmp_path_factory.mktemp("several"), request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(request):
    if "cells" in request.fixturenames:
        cells = request.getfixturevalue("cells")
        cells.control(stop="")
        cells.run("%hermes wait")
        cells.run("%hermes new")


def end(cells, cell):
    """Wait for the end of a turn; return what its cell shows."""
    cells.until(lambda: not {RUNNING, "‖"} & {*cells.text(cell)})
    return cells.text(cell)


def sent(cells):
    """Return the first line of each message of the user in the current session."""
    printed = cells.run("print([m.text for m in agent().session.messages if m.role == 'user'])")
    return [each.splitlines()[0] for each in eval(printed)]


def side(cells, *names):
    """Start a turn for each name, in its own cell and session."""
    for name in names:
        cells.run(f"%%hermes --background --approve all --session {name}\n{name}", name)


@pytest.mark.parametrize("n", range(3))
def test_turns_of_different_sessions_run_side_by_side(cells, n):
    names = [f"{word}{n}" for word in ("red", "green", "blue")]
    cells.run(f"done = []; plays_by_prompt({scripts(*names, n=n)}, delay=0.1)")
    side(cells, *names)
    running = [each for each in names if RUNNING in cells.text(each)]
    assert running == names
    assert "waiting for &#91;" not in "".join(map(cells.text, names))
    assert cells.run("print('mine')") == "mine\n"
    shown = {name: end(cells, name) for name in names}
    for name, text in shown.items():
        others = [each for each in names if each != name]
        assert f"{name} a\n{name} b" in text and f"The answer of {name}." in text
        assert not any(each in text for each in others)
    assert cells.run("print(sorted(done))") == f"{sorted(names)}\n"


def test_a_fourth_turn_waits_for_one_of_three(cells):
    names = ["w1", "w2", "w3", "w4"]
    cells.run(f"done = []; plays_by_prompt({scripts(*names)}, delay=0.15)")
    side(cells, *names)
    cells.until(lambda: "waiting for &#91;" in cells.text("w4"))
    assert all("waiting for &#91;" not in cells.text(each) for each in names[:3])
    assert [name for name in names if f"answer of {name}" in end(cells, name)] == names


def test_stop_of_one_turn_leaves_the_others(cells):
    names = ["one", "two", "three"]
    cells.run(f"done = []; plays_by_prompt({scripts(*names)}, delay=0.15)")
    side(cells, *names)
    cells.until(lambda: "answer" in cells.text("two"))
    assert cells.control(stop="two")["stopped"] == 1
    shown = [end(cells, name) for name in names]
    assert ["Stopped." in text for text in shown] == [False, True, False]
    assert "The answer of one." in shown[0] and "The answer of three." in shown[2]


def test_a_message_reaches_the_turn_that_it_names(cells):
    heard = "['A long answer. ' * 8, lambda added: f'I heard {added}.']"
    cells.run(f"plays_by_prompt({{'one': {heard}, 'two': {heard}}}, delay=0.1)")
    side(cells, "one", "two")
    cells.until(lambda: all("answer" in cells.text(each) for each in ("one", "two")))
    cells.run(f"%hermes steer --cell {cells.count['one']} with tea")
    assert cells.control(steer="with milk")["steered"]  # the current session's turn
    assert "I heard ['with tea']." in end(cells, "one")
    assert "I heard ['with milk']." in end(cells, "two")


def test_turns_in_the_session_of_a_running_one_wait_for_it(cells):
    cells.run(f"done = []; plays_by_prompt({scripts('one', 'two', 'also')}, delay=0.1)")
    side(cells, "one", "two")
    cells.run("%%hermes --background --approve all --session one\nalso", "also")
    cells.until(lambda: f"waiting for &#91;{cells.count['one']}&#93;" in cells.text("also"))
    assert [f"answer of {each}" in end(cells, each) for each in ("one", "two", "also")] == [
        True
    ] * 3
    cells.run("%hermes resume one")
    assert sent(cells)[-2:] == ["one", "also"]


def test_each_turn_has_its_own_approval_mode(cells):
    cells.run(f"done = []; plays_by_prompt({scripts('free', 'asks')}, delay=0.1)")
    cells.run("%%hermes --background --approve all --session free\nfree", "free")
    cells.run("%%hermes --background --approve ask --session asks\nasks", "asks")
    cells.until(lambda: "waiting for you" in cells.text("asks"))
    cells.run("%hermes no")
    assert "declined" in end(cells, "asks")
    assert "free b" in end(cells, "free")
    assert cells.run("print(done)") == "['free']\n"


@pytest.fixture
def page(tmp_path):
    """Return a kernel whose page shows questions."""
    with beside_kernel(tmp_path) as running:
        running.page = True
        running.run("frontend.QUICK = frontend.SILENT = 10")  # there is a page to wait for
        yield running


def test_each_answer_reaches_the_turn_that_asked(page):
    names = ["one", "two"]
    page.run(f"done = []; plays_by_prompt({scripts(*names)})")
    for name in names:
        page.run(f"%%hermes --background --approve ask --session {name}\n{name}", name)
    page.until(lambda: sorted(page.asked) == sorted(names))
    for name in names:
        assert name in json.dumps(page.asked[name]["lines"])
    page.answer("two", "once")
    assert "two b" in end(page, "two")
    assert "waiting for you" in page.text("one")
    page.answer("one", "deny")
    assert "declined" in end(page, "one")
    assert page.run("print(done)") == "['two']\n"


def test_both_turns_save_to_memory_and_both_are_counted(cells):
    names = ["left", "right"]
    note = "call('memory', action='add', target='memory', content='{0} is a side')"
    steps = (f"'{name}': [{note.format(name)}, 'Saved.']" for name in names)
    cells.run(f"plays_by_prompt({{{', '.join(steps)}}}, delay=0.2)")
    side(cells, *names)
    assert ["Saved." in end(cells, name) for name in names] == [True, True]
    kept = cells.run("print(agent().knowledge.memory.entries('memory'))")
    assert all(f"{name} is a side" in kept for name in names)
    told = "print([agent().sessions.find(each).usage.requests for each in ('left', 'right')])"
    assert cells.run(told) == "[2, 2]\n"


def test_undo_undoes_one_turn_and_names_the_conflict(cells):
    write = "call('write_file', path='{0}.txt', content='{0}')"
    both = "call('write_file', path='both.txt', content='{0} ' * 9)"
    steps = (f"'{name}': [{write.format(name)}, {both.format(name)}, 'Written.']" for name in "ab")
    cells.run(f"plays_by_prompt({{{', '.join(steps)}}}, delay=0.1)")
    side(cells, *"ab")
    assert ["Written." in end(cells, name) for name in "ab"] == [True, True]
    last = cells.run("print(open('both.txt').read()[0])").strip()
    first = "ab".replace(last, "")
    cells.run(f"%hermes resume {first}")
    assert "both.txt" in cells.run("%hermes undo")  # changed since, by the other turn
    seen = "import pathlib; print(sorted(each.name for each in pathlib.Path().glob('*.txt')))"
    assert cells.run(seen) == f"{sorted([f'{last}.txt', 'both.txt'])}\n"
    cells.run(f"%hermes resume {last}")
    cells.run("%hermes undo")
    assert f"{last}.txt" not in cells.run(seen)


def test_new_starts_another_session_beside_a_turn(cells):
    cells.run(f"done = []; plays_by_prompt({scripts('first', 'second', 'third')}, delay=0.1)")
    ask = "%%hermes --background --approve all"
    cells.run(f"{ask}\nfirst", "first")
    cells.run(f"{ask} --new\nsecond", "second")
    cells.run(f"{ask}\nthird", "third")  # in the session that began last
    cells.until(lambda: f"waiting for &#91;{cells.count['second']}&#93;" in cells.text("third"))
    assert RUNNING in cells.text("first") + cells.text("second")
    assert [f"answer of {n}" in end(cells, n) for n in ("first", "second", "third")] == [True] * 3
    assert sent(cells) == ["second", "third"]


def test_with_an_external_memory_turns_run_one_after_another(tmp_path):
    (tmp_path / "home").mkdir()
    config = "memory: {provider: elsewhere}\n"
    (tmp_path / "home" / "config.yaml").write_text(config, encoding="utf-8")
    with beside_kernel(tmp_path) as cells:
        cells.run(f"done = []; plays_by_prompt({scripts('one', 'two')}, delay=0.1)")
        side(cells, "one", "two")
        cells.until(lambda: f"waiting for &#91;{cells.count['one']}&#93;" in cells.text("two"))
        assert ["answer of two" in end(cells, "two"), "◌" in cells.text("one")] == [True, False]
