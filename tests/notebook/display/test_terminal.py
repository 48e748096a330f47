"""A turn as a real terminal shows it: IPython on a pty, its bytes read by a terminal emulator."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import ExitStack, suppress

import pexpect
import pyte
import pytest
from hermes_nb.core.events import MessageAdded, TextDelta, TurnStarted
from hermes_nb.core.messages import Message
from hermes_nb.notebook.display.plain_terminal import TerminalView
from hermes_nb.notebook.display.transcript import Transcript

from tests.loopback import (
    Loopback,
    Reply,
    chunk,
    event,
    failure,
    pause,
    stall,
    stream,
    text_chunks,
    tool_chunks,
)
from tests.patience import SOON, ended

pytestmark = pytest.mark.kernel
ROWS, COLUMNS = 24, 80
SPECIES = """# Gentoo is heaviest

See [the plot](https://plots.example/1.png) of `mass`:

| species | n |
|---|---:|
| Gentoo | 123 |

```python
df.groupby("species")["mass"].mean()
```

- one
- two \x1b[31mred\x1b[0m [red]markup[/red]
"""


class Terminal:
    """IPython on a pty; `lines` is what its user sees and can scroll back to."""

    def __init__(self, server, folder, **environment):
        self.server = server
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=9_000)
        self.stream = pyte.Stream(self.screen)
        self.bytes = ""
        env = {
            **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
            "HERMES_HOME": str(folder / "home"),
            "IPYTHONDIR": str(folder / "ipython"),
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "loopback-model",
            "TERM": "xterm-256color",
            **environment,
        }
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=linux"],
            env=env,
            cwd=str(folder),
            encoding="utf-8",
            dimensions=(ROWS, COLUMNS),
        )
        self.until("In [1]:")
        self.send("%load_ext hermes_nb")
        self.until("In [2]:")

    def send(self, line):
        self.child.sendline(line)

    def feed(self, patience=0.05):
        """Draw what has been written; say whether there was any."""
        said = ""
        with suppress(pexpect.TIMEOUT):
            said = self.child.read_nonblocking(65_536, patience)
            self.bytes += said
            self.stream.feed(said)
        return bool(said)

    def until(self, text, *, seconds=90):
        end = time.monotonic() + seconds
        while text not in "\n".join(self.lines):
            assert time.monotonic() < end, f"no {text!r} in:\n" + "\n".join(self.lines)
            self.feed()

    def frames(self, text, *, seconds=60):
        """Yield what is on the screen, until a text is."""
        end = time.monotonic() + seconds
        while text not in "\n".join(self.lines):
            assert time.monotonic() < end
            self.feed()
            while self.feed(0.01):  # what is written at once may arrive in parts
                pass
            yield self.lines

    @property
    def lines(self):
        above = ["".join(line[i].data for i in range(COLUMNS)) for line in self.screen.history.top]
        return [line.rstrip() for line in [*above, *self.screen.display]]

    def answer(self, count=2):
        """Return the lines between a prompt and the next one."""
        lines = self.lines
        prompts = (f"In [{count}]:", f"In [{count + 1}]:")
        first, last = (max(i for i, at in enumerate(lines) if at.startswith(p)) for p in prompts)
        return [line for line in lines[first + 1 : last] if line]

    def colours(self, text):
        """Return the colours of a text on the screen."""
        for y, line in enumerate(self.screen.display):
            if (x := line.find(text)) >= 0:
                return {self.screen.buffer[y][i].fg for i in range(x, x + len(text))}
        raise AssertionError(text)


@pytest.fixture
def terminal(tmp_path):
    """Return a function that starts IPython against a server with these replies."""
    with ExitStack() as opened:

        def start(*replies, **environment):
            made = Terminal(opened.enter_context(Loopback(*replies)), tmp_path, **environment)
            opened.callback(ended, made.child)
            return made

        yield start


def slowly(text, *, size=20, seconds=0.01):
    """Return an answer that streams in."""
    steps = []
    for at in range(0, len(text), size):
        steps += [pause(seconds), event(chunk({"content": text[at : at + size]}))]
    return Reply([*steps, *stream(text_chunks("")).steps])


def test_an_answer_is_drawn_as_markdown(terminal):
    shown = terminal(slowly(SPECIES))
    shown.send("%hermes which is heaviest?")
    shown.until("In [3]:")
    heading, *said = shown.answer()
    assert heading.strip() == "Gentoo is heaviest"
    assert said[:-1] == [
        "See the plot (https://plots.example/1.png) of mass:",
        *("species     n", "─────────────", "Gentoo    123"),
        *(' df.groupby("species")["mass"].mean()', " • one"),
        r" • two \x1b[31mred\x1b[0m [red]markup[/red]",
    ]
    assert re.fullmatch(r"✓ [\d.]+ s · .*1 request · 10 in · 5 out", shown.answer()[-1])
    assert shown.colours('"species"') == {"green"}
    assert shown.colours("[red]markup") == {"default"}
    assert "\x1b]8" not in shown.bytes


def test_calls_run_live_and_stay_as_lines(terminal):
    code = "import time\nfor n in range(5):\n    print('epoch', n)\n    time.sleep(0.5)"
    calls = [
        ("run_python", {"code": code}),
        ("run_python", {"code": "1/0"}),
    ]
    shown = terminal(
        stream([chunk({"content": "Let me **look**."}), *tool_chunks(*calls)]),
        stream(text_chunks("Done.")),
    )
    shown.send("%hermes --approve all look")
    clocks, epochs = set(), set()
    for lines in shown.frames("In [3]:"):
        clocks |= set(re.findall(r"◌ run_python .* · ([\d.]+) s", "\n".join(lines)))
        epochs |= {line for line in lines if line.startswith("  epoch")}
    assert {"  epoch 2", "  epoch 3"} <= epochs
    assert len(clocks) >= 3, "the clock stood still while code held up the event loop"
    answer = shown.answer()
    assert answer[0] == "Let me look."
    assert re.match(r"  ✓ run_python for n in range\(5\): … · \d+\.", answer[1])
    assert answer[2].startswith("  ✗ run_python 1/0 · error · ")
    assert answer[3:5] == ["Done.", "± + n"]
    assert answer[5].startswith("! 1 call failed · ")
    assert len(answer) == 6


def test_a_question_with_choices_is_asked_in_the_terminal(terminal):
    which = tool_chunks(("clarify", {"question": "Which year?", "choices": ["2008", "2009"]}))
    shown = terminal(stream(which), stream(text_chunks("Good.")))
    shown.send("%hermes --tools default,clarify count them")
    shown.until("Your answer (a number, or your own words; empty for none):")
    assert "Which year?" in "\n".join(shown.lines)
    shown.send("2")
    shown.until("In [3]:")
    assert shown.server.bodies[-1]["messages"][-1]["content"] == "The user: 2009"


@pytest.mark.slow
def test_an_answer_taller_than_the_screen_is_there_once(terminal):
    code = "\n".join(f"value_{i} = {i}" for i in range(300))
    items = "\n".join(f"- item {i}" for i in range(200))
    words = " ".join(f"word{i}" for i in range(1_500))
    text = f"Before.\n\n```python\n{code}\n```\n\n{items}\n\n{words}\n\nAfter."
    shown = terminal(slowly(text, size=60, seconds=0.005))
    shown.send("%hermes tell me everything")
    for lines in shown.frames("In [3]:"):
        found = [line for line in lines if re.fullmatch(r" • item \d+| value_\d+ = \d+", line)]
        assert len(found) == len(set(found)), "a line is there twice"
    answer = shown.answer()
    assert answer[0] == "Before."
    assert answer[1:301] == [f" value_{i} = {i}" for i in range(300)]
    assert answer[301:501] == [f" • item {i}" for i in range(200)]
    assert " ".join(answer[501:-2]).split() == words.split()
    assert answer[-2] == "After."


def test_a_question_waits_without_anything_being_drawn_over_it(terminal):
    shown = terminal(
        stream(tool_chunks(("run_python", {"code": "made = 7"}))), stream(text_chunks("Made."))
    )
    shown.send("%hermes make it")
    shown.until("Run it?")
    time.sleep(0.5)
    before = shown.bytes
    shown.feed()
    assert shown.bytes == before, "something was drawn over the question"
    assert not shown.screen.cursor.hidden
    shown.send("y")
    shown.until("In [3]:")
    assert any("made = 7" in line for line in shown.lines)
    assert "Made." in shown.answer()
    assert not any("◌" in line for line in shown.lines)


def test_a_stopped_turn_keeps_what_was_said_a_quiet_one_shows_its_end_a_failed_one_a_line(terminal):
    shown = terminal(
        Reply([event(chunk({"content": "The **beginning** of"})), stall]),
        slowly("The **end**."),
        failure(401, {"error": {"message": "no such key"}}),
    )
    shown.send("%hermes tell me a story")
    shown.until("The beginning of")
    shown.child.sendintr()
    shown.until("In [3]:")
    answer = shown.answer()
    assert answer[0] == "The beginning of"
    assert answer[1].startswith("Stopped. The work so far is kept")
    assert answer[2].startswith("■ ")
    assert "stopped" not in answer[3:]
    assert not shown.screen.cursor.hidden
    shown.send("%hermes --quiet say it")
    for lines in shown.frames("In [4]:"):
        assert not any("◌" in line for line in lines)
    assert shown.answer(3)[0] == "The end."
    shown.send("%hermes hello")
    shown.until("In [5]:")
    failed = shown.answer(4)
    assert failed[0].startswith("✗ ")
    assert "refused the API key" in " ".join(failed[1:])
    assert not shown.screen.cursor.hidden


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_no_colours_gets_plain_text(terminal, environment):
    shown = terminal(slowly("The **end** of `it`."), **environment)
    begun = len(shown.bytes)
    shown.send("%hermes say it")
    shown.until("In [3]:")
    assert shown.answer()[0] == "The **end** of `it`."
    assert not re.search(r"\x1b\[\d*[AKJ]|\x1b\[3\dm", shown.bytes[begun:])


def test_commands_are_drawn_too(terminal, tmp_path):
    (tmp_path / "notes.txt").write_text("one\ntwo\n", encoding="utf-8")
    shown = terminal(
        stream(tool_chunks(("write_file", {"path": "notes.txt", "content": "one\nthree\n"}))),
        stream(text_chunks("It is **three** now.")),
    )
    shown.send("%hermes change it")
    shown.until("Run it?")
    assert shown.colours("+three") == {"green"}
    shown.send("y")
    shown.until("In [3]:")
    first = [line for line in shown.answer() if line.startswith(("  ✓", "It is"))]
    shown.send("%hermes diff")
    shown.until("In [4]:")
    assert shown.colours("+three") == {"green"}
    shown.send("%hermes last")
    shown.until("In [5]:")
    again = shown.lines[max(i for i, line in enumerate(shown.lines) if "%hermes last" in line) :]
    assert [line for line in again if line.startswith(("  ✓", "It is"))] == first
    shown.send("%hermes approve")
    shown.until("Approvals: ask (of ask, edits, all, never).")
    assert "\x1b[1mask" in shown.bytes


def test_a_map_has_its_bar_below_until_it_is_over_or_stopped(terminal, tmp_path):
    for n in range(4):
        (tmp_path / f"n{n}.md").write_text(f"note {n}")
    yes = stream(text_chunks("A number."))
    slow = Reply([pause(0.7), *yes.steps])
    shown = terminal(slow, slow, slow, slow, yes, yes, Reply([b": begun\n\n", stall]))
    shown.send('%hermes map --parallel 1 "What is in it?" *.md')
    bars = set()
    for lines in shown.frames("In [3]:"):
        bars |= set(re.findall("[▰▱]{24} ([0-4] of 4)", "\n".join(lines)))
        assert sum("▱" in line for line in lines) <= 1
    assert {"1 of 4", "2 of 4", "3 of 4"} <= bars
    answer = "\n".join(shown.answer())
    assert answer.count("A number.") == 4
    assert "✓ 4 done" in answer
    assert "▰" not in answer
    shown.send('%hermes map --parallel 1 "And what else?" *.md')
    shown.until("2 of 4")
    shown.child.sendintr()
    shown.until("In [4]:")
    answer = "\n".join(shown.answer(3))
    assert "2 done, 2 stopped" in answer
    assert answer.endswith("\nstopped")
    assert "▰" not in answer


def test_without_colours_code_asks_too_and_ctrl_c_stops_the_turn_and_not_the_shell(terminal):
    shown = terminal(
        stream(tool_chunks(("run_python", {"code": "made = 7"}))),
        stream(text_chunks("Made.")),
        Reply([event(chunk({"content": "The beginning "})), stall]),
        stream(text_chunks("Onwards.")),
        TERM="dumb",
    )
    shown.send("%hermes make it")
    shown.until("Run it")
    shown.send("y")
    shown.until("In [3]:")
    assert "Made." in shown.answer()
    shown.send("print('value', made)")
    shown.until("value 7")
    shown.send("%hermes tell me a story")
    shown.until("The beginning")
    started = time.monotonic()
    shown.child.sendintr()
    shown.until("In [5]:")
    assert time.monotonic() - started < SOON
    assert any(line.startswith("Stopped.") for line in shown.lines)
    shown.send("%hermes go on")
    shown.until("In [6]:")
    assert "Onwards." in shown.lines
    roles = [message["role"] for message in shown.server.bodies[-1]["messages"]]
    assert roles[-3:] == ["user", "assistant", "user"]


def test_plain_text_shows_no_half_of_a_secret(capsys):
    key = "sk-" + "a1B2" * 10
    view = TerminalView(Transcript(model="m"))
    deltas = ("The key is sk", "-", key[3:20], key[20:], ".")
    for told in (TurnStarted(1), *map(TextDelta, deltas)):
        view(told)
    view(MessageAdded(Message.assistant("x")))
    said = capsys.readouterr().out
    assert said.startswith("The key is ") and "a1B2" not in said
