"""`jupyter hermes chat` on a real terminal: what its user types, sees and stops."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

import pexpect
import pyte
import pytest
from hermes_nb.cli.main import main
from hermes_nb.extras.chat.terminal import HISTORY
from hermes_nb.notebook.interrupt import PATIENCE

from tests.cli.conftest import KEY, gone
from tests.loopback import Reply, calls, chunk, event, pause, says, stall
from tests.patience import SOON, ended, until

pytestmark = pytest.mark.slow
ENTER, ESCAPE, STOP, END, SUSPEND = "\r", "\x1b", "\x03", "\x04", "\x1a"


def hears_hangups():
    """Be as in a terminal, also where the tests are run by nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Chat:
    """A chat on a pty, and its screen as a terminal shows it."""

    def __init__(self, folder, *words, columns=90, **environment):
        self.columns = columns
        self.screen = pyte.HistoryScreen(columns, 30, history=2_000)
        self.stream = pyte.Stream(self.screen)
        env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        env |= {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", **environment}
        self.child = pexpect.spawn(
            sys.executable, ["-m", "hermes_nb.cli", "chat", *words],
            env=env, cwd=str(folder), encoding="utf-8", dimensions=(30, columns),
            preexec_fn=hears_hangups,
        )  # fmt: skip

    @property
    def lines(self):
        above = [
            "".join(line[i].data for i in range(self.columns)) for line in self.screen.history.top
        ]
        return [line.rstrip() for line in [*above, *self.screen.display]]

    @property
    def text(self):
        return "\n".join(self.lines)

    def type(self, *keys):
        for key in keys:
            self.child.send(key)

    def feed(self):
        with suppress(pexpect.TIMEOUT, pexpect.EOF):
            self.stream.feed(self.child.read_nonblocking(65_536, 0.05))

    def until(self, text, times=1, *, seconds=60):
        end = time.monotonic() + seconds
        while self.text.count(text) < times:
            assert time.monotonic() < end, f"no {text!r} in:\n{self.text}"
            self.feed()

    def ready(self):
        """Wait for the prompt, empty and at the end."""
        end = time.monotonic() + 60
        while [line for line in self.lines if line][-1:] != [">"]:
            assert time.monotonic() < end, f"no prompt in:\n{self.text}"
            self.feed()

    def left(self):
        """Return the exit code, once it has ended."""
        assert until(lambda: self.feed() or not self.child.isalive(), 60), self.text
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def chat(tmp_path):
    begun = []

    def start(*words, **options):
        begun.append(Chat(tmp_path, *words, **options))
        return begun[-1]

    yield start
    for each in begun:
        ended(each.child)


def prompts_of(server):
    sent = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "user"]
    return [str(each) for each in sent]


def test_a_turn_streams_and_the_conversation_goes_on(serve, chat, home):
    whole = list(says("**Seven** of them.").steps)
    slow = Reply([*whole[:-5], pause(3), *whole[-5:]])
    server = serve(slow, says("Still seven."))
    talk = chat()
    talk.ready()
    assert "/help lists the commands" in talk.text
    talk.type("how many?", ENTER)
    talk.until("Seven of")
    assert "them." not in talk.text, "it is shown while it comes"
    talk.until("Seven of them.")
    talk.ready()
    talk.type("and", SUSPEND, " now?", ENTER)  # no shell is there to go on in
    talk.until("Still seven.")
    talk.ready()
    first, second = prompts_of(server)
    assert "how many?" in first and "and now?" in second
    talk.type(END)
    assert talk.left() == 0
    kept = home / HISTORY
    assert "how many?" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_a_prompt_of_several_lines_and_one_from_the_history(serve, chat):
    server = serve(says("Read."))
    talk = chat()
    talk.ready()
    talk.type("one", ESCAPE + ENTER, "two", ENTER)
    talk.until("Read.")
    talk.ready()
    assert "one\ntwo" in prompts_of(server)[0]
    talk.type(END)
    assert talk.left() == 0
    again = chat()
    again.ready()
    again.type("\x1b[A")
    again.until("two")
    again.type(ENTER)
    again.until("Read.")
    assert "one\ntwo" in prompts_of(server)[0]
    again.ready()
    again.type("/retry edit", ENTER)
    again.until("offered below")
    again.until("two", 2)
    again.type("!", ENTER)
    again.until("Read.", 2)
    assert ["one\ntwo!" in each for each in prompts_of(server)] == [True]


def test_a_slash_and_a_name_follow_a_skill(serve, chat):
    server = serve(says("Tidied."))
    talk = chat()
    talk.ready()
    talk.type("/tidy-notebook keep the plots", ENTER)
    talk.until("Tidied.")
    assert "[Follow this skill in this turn: tidy-notebook]" in prompts_of(server)[0]


def test_commands_are_those_of_the_magic_and_completed(serve, chat, tmp_path):
    (tmp_path / "penguins.csv").write_text("a,b\n1,2\n")
    server = serve(says("Two columns."))
    talk = chat()
    talk.ready()
    talk.type("/mem")
    talk.until("memory")
    talk.type("\t", " add user", " likes short answers", ENTER)
    talk.until("New sessions use it; /reload")
    talk.ready()
    talk.type("/memroy", ENTER)
    talk.until("did you mean /memory?")
    talk.ready()
    talk.type("/etc/passwd says", ENTER)
    talk.until("there is no command /etc/passwd")
    talk.ready()
    assert server.bodies == [], "nothing of that is sent"
    talk.type("/doctor", ENTER)
    talk.until("a terminal; risky calls ask first")
    talk.ready()
    talk.type("what is in @")
    talk.until("@folder:")
    assert "@cell:" not in talk.text, "there is none"
    talk.type("file:peng", "\t", "?", ENTER)
    talk.until("Two columns.")
    assert "a,b" in prompts_of(server)[0]
    talk.ready()
    talk.type("%hermes sessions", ENTER)
    talk.until("what is in @file:penguins.csv?")
    talk.ready()
    talk.type("/quit", ENTER)
    assert talk.left() == 0


def test_a_question_is_answered_by_a_key(serve, chat, tmp_path):
    wish = calls(("write_file", {"path": "made.txt", "content": "x"}))
    server = serve(wish, wish, wish, says("Made it."))
    talk = chat()
    talk.ready()
    talk.type("make it", ENTER)
    talk.until("Run it?")
    talk.type("not yet, name it otherwise", ENTER)
    talk.until("Run it?", 2)
    assert "not yet, name it otherwise" in server.bodies[-1]["messages"][-1]["content"]
    talk.type("n")
    talk.until("Run it?", 3)
    assert not (tmp_path / "made.txt").exists()
    talk.type("y")
    talk.until("Made it.")
    talk.ready()
    assert (tmp_path / "made.txt").exists()
    assert "/undo 1" in talk.text
    talk.type("/help", ENTER)
    talk.until("/exit quits")
    assert "%hermes" not in talk.text


def test_a_question_with_choices_is_answered_by_number_and_in_own_words(serve, chat):
    which = calls(("clarify", {"question": "Which?", "choices": ["[x] as it is", "[y] rounded"]}))
    server = serve(which, which, says("Thanks."))
    talk = chat()
    talk.ready()
    talk.type("/--tools default,clarify plot it", ENTER)
    talk.until("2. [y] rounded")
    talk.type("2", ENTER)
    talk.until("2. [y] rounded", 2)
    assert server.bodies[-1]["messages"][-1]["content"] == "The user: [y] rounded"
    talk.type("x, in logs", ENTER)
    talk.until("Thanks.")
    assert server.bodies[-1]["messages"][-1]["content"] == "The user: x, in logs"


def test_what_was_typed_before_a_question_is_no_answer(serve, chat, tmp_path):
    slow = calls(("write_file", {"path": "made.txt", "content": "x"}))
    slow.steps = [pause(2), *slow.steps]
    serve(slow, says("So be it."))
    talk = chat()
    talk.ready()
    talk.type("make it", ENTER)
    talk.until("loopback-model")
    talk.type("y")
    talk.until("Run it?")
    time.sleep(1)
    talk.feed()
    assert not (tmp_path / "made.txt").exists()
    talk.type("n")
    talk.until("So be it.")
    assert not (tmp_path / "made.txt").exists()


def test_a_stop_in_a_question_ends_the_turn(serve, chat, tmp_path):
    serve(calls(("write_file", {"path": "made.txt", "content": "x"})), says("never"))
    talk = chat()
    talk.ready()
    talk.type("make it", ENTER)
    talk.until("Run it?")
    talk.type(STOP)
    talk.until("Stopped.")
    talk.ready()
    assert not (tmp_path / "made.txt").exists()
    talk.type(END)
    assert talk.left() == 0


def test_a_hanging_model_is_stopped_and_the_second_stop_leaves(serve, chat):
    server = serve(Reply([event(chunk({"content": "Half an "})), stall]), says("Whole."))
    talk = chat()
    talk.ready()
    talk.type("go", ENTER)
    talk.until("Half an")
    began = time.monotonic()
    talk.type(STOP)
    talk.until("Stopped.")
    assert time.monotonic() - began < SOON
    talk.ready()
    time.sleep(PATIENCE)
    talk.type(STOP)
    talk.until("to exit")
    talk.ready()
    talk.type("again", ENTER)
    talk.until("Whole.")
    talk.ready()
    assert len(prompts_of(server)) == 2
    talk.type("half a line", STOP)
    talk.until("to exit", 2)
    talk.type(STOP)
    assert talk.left() == 0


def test_a_session_is_shared(serve, chat, capsys):
    server = serve(says("Noted."))
    assert main(["run", "--session", "plans", "remember 42"]) == 0
    server = serve(says("It was 42."))
    talk = chat("--session", "plans")
    talk.until("Session plans, 2 messages.")
    talk.ready()
    talk.type("what was it?", ENTER)
    talk.until("It was 42.")
    talk.ready()
    talk.child.kill(signal.SIGTERM)
    assert talk.left() == 130
    assert len(prompts_of(server)) == 2
    capsys.readouterr()
    assert main(["sessions"]) == 0
    assert "plans" in capsys.readouterr().out


def test_a_narrow_terminal_and_a_key_that_is_not_kept(serve, chat, home):
    serve(says("A line that is longer than such a terminal is wide, in all."))
    talk = chat("--model", "loopback-model", "--approve", "never", columns=24)
    talk.ready()
    talk.type("go", ENTER)
    talk.until("in all.")
    talk.ready()
    assert all(len(line) <= 24 for line in talk.lines)
    talk.type(f"/key {KEY}", ENTER)
    talk.until("an API key")
    talk.ready()
    talk.type(END)
    assert talk.left() == 0
    assert KEY not in (home / HISTORY).read_text()


@pytest.mark.parametrize("how", [signal.SIGTERM, "closed"])
def test_what_runs_ends_with_the_terminal(serve, chat, tmp_path, how):
    command = "sleep 300 & echo $! > pid; wait"
    serve(calls(("terminal", {"command": command})), says("never"))
    talk = chat("--approve", "all")
    talk.ready()
    talk.type("go", ENTER)
    assert until(lambda: talk.feed() or (tmp_path / "pid").exists(), 60), talk.text
    assert until(lambda: (tmp_path / "pid").read_text().endswith("\n"))
    if how == "closed":
        talk.child.ptyproc.fileobj.close()
    else:
        talk.child.kill(how)
    assert gone(int((tmp_path / "pid").read_text()))
    assert gone(talk.child.pid)
    assert main(["sessions"]) == 0


@pytest.mark.parametrize("name", ["TERM", "NO_COLOR"])
def test_a_terminal_that_cannot_draw(serve, chat, name):
    serve(says("Plain."))
    talk = chat(**{name: "dumb"})
    talk.until(">")
    talk.type("go", ENTER)
    talk.until("Plain.")
    talk.type(END)
    assert talk.left() == 0


def test_without_a_terminal_it_says_what_to_use(capsys):
    assert main(["chat"]) == 2
    assert "jupyter hermes run -" in capsys.readouterr().err
