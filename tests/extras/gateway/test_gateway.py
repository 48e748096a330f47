"""The gateway over an honest service in memory: turns, order, questions, commands, refusals."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import sqlite3
import time
from contextlib import closing

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Message, Text
from hermes_nb.extras.gateway.core import File, NotSent, Undeliverable
from hermes_nb.extras.gateway.journal import Journal
from hermes_nb.extras.gateway.service import pieces
from hermes_nb.extras.jobs.schedule import Job, Schedule
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from hypothesis import given
from hypothesis import strategies as st

from tests.extras.gateway.services import Memory, serving

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    return path


def play(root, home, story, *steps, service=None, window=None, config="", **options):
    """Run a story against a gateway whose model plays these steps; return the service and model."""
    home.mkdir(exist_ok=True)
    if config:
        (home / "config.yaml").write_text(f"gateway:\n{config}", encoding="utf-8")
    model = ScriptedModel(steps, window=window)

    async def run():
        chat = service or Memory()
        async with serving(chat, root=root, home=home, model=model, **options) as told:
            chat.told = told
            await story(chat)
        return chat

    return asyncio.run(run()), model


def test_a_message_is_answered_in_the_session_of_its_chat(root, home):
    async def story(chat):
        chat.post("My name is Ada.")
        await chat.said(1)
        chat.post("Who am I?")
        chat.post("And who am I?", chat="cellar", user="bob")
        await chat.said(3)
        await chat.until(lambda: len(chat.acknowledged) == 3)

    def last(request):
        return f"{len(request.messages)} messages: {request.messages[-1].text}"

    chat, _ = play(root, home, story, "Hello Ada.", last, last)
    by_chat = {(answer.chat, answer.to): answer.text for answer in chat.sent}
    assert by_chat["kitchen", "m1"] == "Hello Ada."
    assert by_chat["kitchen", "m2"] == "4 messages: Who am I?"  # with the system prompt
    assert by_chat["cellar", "m3"] == "2 messages: And who am I?"
    assert len({answer.key for answer in chat.sent}) == 3
    assert not any(answer.again for answer in chat.sent)
    assert chat.shown  # that it is being worked on
    with closing(SqliteStore(home / "notebook.db")) as store:
        assert {row.source for row in store.sessions()} == {"chat"}
    with closing(sqlite3.connect(home / "gateway" / "journal.db")) as journal:
        rows = journal.execute("SELECT state, message, parts FROM messages").fetchall()
    assert [state for state, _, _ in rows] == ["done"] * 3
    assert not [each for _, *said in rows for each in said if "Ada" in each or "am I" in each]


KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2


def test_a_key_that_is_sent_stays_nowhere_and_is_no_models_name(root, home):
    kept = []

    async def story(chat):
        chat.post(f"/model {KEY}")
        chat.post(f"Use {KEY} from now on.")
        await chat.said(2)

    def answer(_):
        kept.append(KEY.encode() in b"".join(f.read_bytes() for f in home.rglob("*.db*")))
        return "No."

    chat, _ = play(root, home, story, answer)
    assert chat.sent[0].text.startswith("✗ that looks like an API key")
    assert kept == [False]
    assert not [answer for answer in chat.sent if KEY in answer.text]
    files = [each for each in home.rglob("*") if each.is_file()]
    assert files and not [each for each in files if KEY.encode() in each.read_bytes()]


def test_a_stranger_gets_nothing_and_is_told_once(root, home):
    async def story(chat):
        chat.post("let me in", user="mallory")
        chat.post("/model evil", user="mallory")
        chat.post("hello")
        await chat.said(1)

    chat, model = play(root, home, story, "Hello.")
    assert [answer.to for answer in chat.sent] == ["m3"]
    assert len(model.requests) == 1
    assert [line for line in chat.told if "mallory" in line] == [
        "memory: mallory in kitchen is not in `allow`, so it gets no answer"
    ]


def test_chats_are_answered_side_by_side_and_each_in_order(root, home):
    """The first chat's turn waits for the second's: one after the other, neither would end."""
    met = asyncio.Barrier(2)
    order = []

    async def story(chat):
        chat.post("a1", chat="a")
        chat.post("a2", chat="a")
        chat.post("b1", chat="b")
        await chat.said(3)
        order.extend(answer.to for answer in chat.sent if answer.chat == "a")

    class Meeting(ScriptedModel):
        async def stream(self, request):
            if request.messages[-1].text in ("a1", "b1"):
                await asyncio.wait_for(met.wait(), 10)
            async for item in super().stream(request):
                yield item

    home.mkdir()

    async def run():
        chat = Memory()
        model = Meeting(["one", "two", "three"])
        async with serving(chat, root=root, home=home, model=model):
            await story(chat)

    asyncio.run(run())
    assert order == ["m1", "m2"]


@pytest.mark.parametrize(
    ("reply", "ran"),
    [
        ("yes", True),
        ("Yes, please!", True),
        ("yes\n\nBest regards\nAda", True),
        ("always", True),
        ("no, not here", False),
        ("yes, but not here", False),
        ("no", False),
    ],
)
def test_a_question_is_answered_by_the_next_message_that_fits(root, home, reply, ran):
    async def story(chat):
        chat.post("make it")
        question = (await chat.said(1))[0]
        assert "write_file" in question and "made.txt" in question and "Reply yes" in question
        chat.post("What is the weather?")  # no answer: it waits for its turn
        assert "Reply yes, always, or no" in (await chat.said(2))[1]
        chat.post(reply)
        await chat.said(4)
        await chat.until(lambda: len(chat.acknowledged) == 3)

    def done(request):
        results = [m.text for m in request.messages if m.role == "tool"]
        return f"Result: {results[-1]}"

    chat, _ = play(
        root, home, story, call("write_file", path="made.txt", content="x"), done, "Rain."
    )
    assert (root / "made.txt").exists() is ran
    assert ("not here" in chat.sent[2].text) is ("not here" in reply)
    assert chat.sent[3].text == "Rain."
    assert chat.sent[3].to == "m2"


def test_always_holds_for_the_next_message_and_ends_with_new(root, home):
    async def story(chat):
        chat.post("write")
        await chat.said(1)
        chat.post("always")
        await chat.said(2)
        chat.post("write it once more")
        assert (await chat.said(3))[2] == "Again."
        chat.post("/new")
        await chat.said(4)
        chat.post("write")
        assert "Reply yes" in (await chat.said(5))[4]
        chat.post("no")
        await chat.said(6)
        chat.post("run")
        question = (await chat.said(7))[6]
        assert "until /new or a restart." in question and "kernel" not in question

    write = call("write_file", path="made.txt", content="x")
    run = call("terminal", command="echo x > made.txt")
    steps = write, "Done.", write, "Again.", "Nothing to save.", write, "End.", run, "End."
    play(root, home, story, *steps)


def test_no_answer_in_time_is_a_no(root, home):
    async def story(chat):
        chat.post("make it")
        said = await chat.said(3)
        assert "no one answered in time" in said[1].lower()
        chat.post("yes")  # too late: a message like any other
        await chat.said(4)

    chat, _ = play(
        root,
        home,
        story,
        call("write_file", path="made.txt", content="x"),
        "Then not.",
        "Yes what?",
        config="  question_minutes: 0.005\n",
    )
    assert not (root / "made.txt").exists()
    assert [answer.text for answer in chat.sent[2:]] == ["Then not.", "Yes what?"]


def test_a_mode_of_the_gateway_holds_there(root, home):
    async def story(chat):
        chat.post("make it")
        await chat.said(1)

    chat, _ = play(
        root,
        home,
        story,
        call("write_file", path="made.txt", content="x"),
        "Made.",
        config="  approve: edits\n",
    )
    assert chat.sent[0].text == "Made."
    assert (root / "made.txt").read_text() == "x"


def test_stop_overtakes_what_waits(root, home):
    async def story(chat):
        chat.post("work for long")
        await chat.until(lambda: chat.shown > 0)
        await asyncio.sleep(0.3)
        chat.post("next")
        chat.post("/Stop it")
        await chat.said(2)
        await chat.until(lambda: len(chat.acknowledged) == 3)
        chat.post("/stop")
        await chat.said(3)

    home.mkdir()

    async def run():
        chat = Memory()
        async with serving(chat, root=root, home=home, model=Endless(["Next."])):
            await story(chat)
            return chat

    chat = asyncio.run(run())
    texts = {answer.to: answer.text for answer in chat.sent}
    assert texts == {"m1": "Stopped.", "m2": "Next.", "m4": "Nothing is running here."}


def test_a_question_with_choices_takes_words_but_no_command(root, home):
    async def story(chat):
        chat.post("plan a trip")
        assert (await chat.said(1))[0].splitlines()[-2:] == ["1. train", "2. plane"]
        chat.post("/help")
        assert "in your own words" in (await chat.said(2))[1]
        chat.post("2")
        await chat.said(4)

    def last(request):
        return request.messages[-1].text

    asked = call("clarify", question="How?", choices=["train", "plane"])
    config = "  approve: ask\nhermes_nb:\n  toolsets:\n    default: [default, clarify]\n"
    chat, _ = play(root, home, story, asked, last, config=config)
    assert "plane" in chat.sent[2].text
    assert chat.sent[3].text.startswith("/new")


def test_undo_takes_back_the_answer_and_the_files(root, home):
    (root / "kept.txt").write_text("before")

    async def story(chat):
        chat.post("hello")
        await chat.said(1)
        chat.post("change it")
        await chat.said(2)
        assert (root / "kept.txt").read_text() == "after"
        chat.post("/undo")
        await chat.said(3)
        chat.post("what was said?")
        await chat.said(4)

    chat, model = play(
        root,
        home,
        story,
        "Hello.",
        call("write_file", path="kept.txt", content="after"),
        "Changed.",
        "Little.",
        config="  approve: edits\n",
    )
    assert (root / "kept.txt").read_text() == "before"
    assert "change it" in chat.sent[2].text and "kept.txt" in chat.sent[2].text
    said = [message.text for message in model.requests[-1].messages[1:]]
    assert said == ["hello", "Hello.", "what was said?"]


def test_new_model_and_help(root, home):
    async def story(chat):
        for text in (
            "one", "/new", "two", "/model", "/model other", "/model", "/model default", "/Help",
            "/start", "/modle other\n\nBest regards\nAda",
        ):  # fmt: skip
            count = len(chat.sent)
            chat.post(text)
            await chat.said(count + 1)

    chat, model = play(root, home, story, "One.", "Two.")
    assert [m.text for m in model.requests[-1].messages[1:]] == ["two"]
    told = [answer.text for answer in chat.sent]
    assert told[3] == told[6] == f"{model.name} is this chat's model."
    assert told[5] == "other is this chat's model."
    assert told[7] == told[8] and "/undo" in told[8]
    assert told[9].startswith("There is no /modle. The commands are") and "/model" in told[9]


def test_a_path_is_no_command(root, home):
    async def story(chat):
        chat.post(f"{root} is full of what?")
        chat.post("/tmp is full of what?")
        await chat.said(2)

    chat, _ = play(root, home, story, "Files.", "Files, too.")
    assert [answer.text for answer in chat.sent] == ["Files.", "Files, too."]


def test_files_come_and_go(root, home):
    (root / "report.csv").write_text("a,b\n")
    (root / "keys.txt").write_text(
        "OPENAI_API_KEY=sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    )

    async def story(chat):
        chat.post(
            "what is this?",
            files=(File(name="../../p .png", data=PNG), File(name="notes.txt", data=b"a note")),
            quoted="buy my thing",
            left_out=("film.mp4: too much",),
        )
        await chat.said(2)

    def looked(request):
        (message,) = [m for m in request.messages if m.role == "user"]
        assert len(message.images) == 1
        own, came = (part for part in message.parts if isinstance(part, Text))
        assert (own.origin, came.origin) == ("user", "outside")
        assert "buy my thing" in came.text and "film.mp4: too much" in came.text
        path = next(word for word in came.text.split() if word.endswith("notes.txt"))
        assert str(home / "outputs" / "gateway") in path
        return [call("read_file", path=path), call("send_file", path="report.csv")]

    def refused(request):
        results = [m for m in request.messages if m.role == "tool"]
        assert "a note" in results[0].text
        assert results[0].origin == "outside"
        return [call("send_file", path="keys.txt"), call("send_file", path="../hermes-home/.env")]

    def last(request):
        results = [m.text for m in request.messages if m.role == "tool"][2:]
        assert "looks like a key" in results[0]
        assert "outside the working directory" in results[1]
        return "Here."

    chat, _ = play(root, home, story, looked, refused, last)
    assert [answer.text for answer in chat.sent] == ["Here.", ""]
    assert chat.sent[1].file.name == "report.csv"
    kept = [path for path in (home / "outputs" / "gateway").rglob("*") if path.is_file()]
    assert sorted(path.name for path in kept) == ["1-notes.txt", "_.._p_.png", "report.csv"]
    assert not list(root.parent.glob("p*"))


class Endless(ScriptedModel):
    """A model that never ends with one task."""

    async def stream(self, request):
        if request.messages[-1].text == "work for long":
            await asyncio.sleep(60)
        async for item in super().stream(request):
            yield item


def test_a_file_goes_as_it_was_when_it_was_looked_at(root, home):
    """What takes its place before the answer is sent may be anything, such as a link to a key."""
    report = root / "my report.csv"
    report.write_text("a,b\n")
    (root.parent / "key").write_text("of the user's")
    os.mkfifo(root / "pipe")

    async def story(chat):
        chat.post("send it")
        await chat.said(2)
        assert chat.sent[1].file.name == "my report.csv"
        assert chat.sent[1].file.read_text() == "a,b\n"
        chat.post("send it again")
        await chat.said(4)

    def swapped(request):
        assert "it is a pipe" in request.messages[-1].text
        report.unlink()
        report.symlink_to(root.parent / "key")
        return "Here."

    def again(_request):
        report.unlink()
        report.write_text("c,d\n")
        return [call("send_file", path="my report.csv")]

    def lost(_request):
        shutil.rmtree(home / "outputs")
        return "Here, too."

    sends = [call("send_file", path="my report.csv"), call("send_file", path="pipe")]
    chat, _ = play(root, home, story, sends, swapped, again, lost)
    assert [each.text for each in chat.sent[2:]] == [
        "Here, too.",
        "✗ my report.csv could not be sent: the file no longer exists",
    ]


def test_a_name_that_no_file_system_takes_holds_up_nobody(root, home):
    async def story(chat):
        name = "\N{MATHEMATICAL BOLD CAPITAL A}" * 90 + ".txt"
        chat.post("look", files=(File(name=name, data=b"x"),))
        await chat.said(1)

    def looked(request):
        assert ".txt (1" in request.messages[-1].text
        return "Seen."

    chat, _ = play(root, home, story, looked)
    assert chat.sent[0].text == "Seen."


def test_who_waits_for_a_person_holds_up_no_other_chat(root, home):
    async def story(chat):
        chat.post("make it", chat="a")
        await chat.said(1)
        chat.post("hello", chat="b")
        await chat.said(2)
        chat.post("yes", chat="a")
        await chat.said(3)

    write = call("write_file", path="made.txt", content="x")
    config = "  parallel: 1\n"
    chat, _ = play(root, home, story, write, "Hello.", "Made.", config=config)
    assert [(each.chat, each.text) for each in chat.sent[1:]] == [("b", "Hello."), ("a", "Made.")]
    assert (root / "made.txt").exists()


def test_a_question_is_answered_by_who_is_asked(root, home):
    async def story(chat):
        chat.post("make it")
        await chat.said(1)
        chat.post("yes", user="bob")
        chat.post("no", user="ada")
        await chat.said(3)

    write = call("write_file", path="made.txt", content="x")
    chat, _ = play(root, home, story, write, "Then not.", "Yes what?")
    assert [each.text for each in chat.sent[1:]] == ["Then not.", "Yes what?"]
    assert not (root / "made.txt").exists()


def test_stop_reaches_what_waits_for_its_place(root, home):
    home.mkdir()
    (home / "config.yaml").write_text("gateway: {parallel: 1}")

    async def run():
        chat = Memory()
        async with serving(chat, root=root, home=home, model=Endless([])):
            chat.post("work for long", chat="a")
            await asyncio.sleep(0.3)
            chat.post("work for long", chat="b")
            await chat.until(lambda: chat.shown > 1)
            chat.post("/stop", chat="b")
            await chat.said(1)
            return chat

    chat = asyncio.run(run())
    assert {each.to: each.text for each in chat.sent} == {"m2": "Stopped."}


def test_a_session_that_cannot_be_ended_is_told_once(root, home, monkeypatch):
    monkeypatch.setattr("hermes_nb.extras.gateway.service.LOOK", 0.02)

    async def story(chat):
        chat.post("hello")
        await chat.said(1)
        (home / "config.yaml").write_text("gateway: {parallel: many}")
        await chat.until(lambda: any("parallel" in line for line in chat.told))
        await asyncio.sleep(0.3)

    config = "  idle_minutes: 0.005\n"
    chat, _ = play(root, home, story, "Hello.", config=config)
    assert len([line for line in chat.told if "parallel" in line]) == 1


def test_what_came_long_ago_is_forgotten(root, home):
    old = home / "outputs" / "gateway" / "0123456789abcdef" / "unpacked"
    old.mkdir(parents=True)
    (old / "letter.txt").write_text("of last year")
    os.utime(old.parent, (0, 0))

    async def story(chat):
        await chat.until(lambda: not old.parent.exists())
        chat.post("hello")
        await chat.said(1)

    play(root, home, story, "Hello.")


def test_what_came_along_makes_the_network_ask(root, home):
    async def story(chat):
        chat.post("look", files=(File(name="a.txt", data=b"curl evil"),))
        assert "Reply yes" in (await chat.said(1))[0]
        chat.post("no")
        await chat.said(2)

    play(
        root,
        home,
        story,
        call("terminal", command="curl http://127.0.0.1:9/"),
        "No.",
        config="  approve: all\n",
    )


def test_long_answers_come_in_parts_and_a_refused_file_is_told(root, home):
    (root / "big.bin").write_bytes(b"\0" * 10)

    class Picky(Memory):
        async def send(self, answer):
            if answer.file is not None:
                raise Undeliverable("too large")
            await super().send(answer)

    async def story(chat):
        chat.post("tell me all")
        await chat.said(4)

    chat, _ = play(
        root,
        home,
        story,
        call("send_file", path="big.bin"),
        "\n".join(["line of text 🙂"] * 20),
        service=Picky(most=120),
    )
    texts = [answer.text for answer in chat.sent]
    assert "".join(texts[:-1]) == "\n".join(["line of text 🙂"] * 20)
    assert texts[-1] == "✗ big.bin could not be sent: too large"
    assert len({answer.key for answer in chat.sent}) == len(chat.sent)


@given(text=st.text(st.characters(codec="utf-8"), max_size=300), most=st.integers(2, 50))
def test_pieces_are_the_text_and_fit(text, most):
    found = pieces(text, most)
    assert all(len(piece.encode("utf-16-le")) <= 2 * most for piece in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_code_that_goes_on_in_the_next_message_is_code_there_too(root, home):
    code = "\n".join(f"line {number}" for number in range(30))

    async def story(chat):
        chat.post("some code")
        await chat.said(3)

    answer = f"Look:\n\n```python\n{code}\n```\n\nThat was `it`."
    chat, _ = play(root, home, story, answer, service=Memory(most=120))
    texts = [sent.text for sent in chat.sent]
    assert all(text.count("```") == 2 for text in texts)
    assert all(text.startswith("```python\nline") for text in texts[1:])
    assert texts[-1].endswith("```\n\nThat was `it`.")
    assert "".join(texts).replace("\n```", "").replace("```python", "").count("line ") == 30


def test_what_was_not_sent_is_sent_again_and_a_doubt_is_marked(root, home, monkeypatch):
    monkeypatch.setattr("hermes_nb.extras.gateway.service.PAUSES", (0.01,))

    async def story(chat):
        chat.faults = [NotSent("it is down"), NotSent("it is down")]
        chat.post("one")
        await chat.said(1)
        chat.faults = [OSError("the connection broke")]
        chat.post("two")
        await chat.said(2)

    chat, _ = play(root, home, story, "One.", "Two.")
    assert [(a.text, a.again) for a in chat.sent] == [("One.", False), ("Two.", True)]
    again = Memory(deduplicates=True)
    chat, _ = play(root, home / "other", story, "One.", "Two.", service=again)
    assert not any(answer.again for answer in chat.sent)


def test_a_turn_that_cannot_begin_is_an_answer_too(root, home):
    async def story(chat):
        chat.post("hello")
        await chat.said(1)
        await chat.until(lambda: chat.acknowledged)

    chat, _ = play(root, home, story, RuntimeError("out of order"))
    assert chat.sent[0].text.startswith("✗")


def test_a_chat_keeps_to_its_budget_over_sessions(root, home):
    async def story(chat):
        for text in ("one", "/new", "two"):
            count = len(chat.sent)
            chat.post(text)
            await chat.said(count + 1)

    chat, model = play(root, home, story, "One. " * 100, "Two.", config="  tokens: 1200\n")
    assert "tokens for this chat" in chat.sent[2].text
    assert len(model.requests) == 1


def test_an_idle_session_ends_and_what_is_worth_keeping_is_noted(root, home, monkeypatch):
    monkeypatch.setattr("hermes_nb.extras.gateway.service.LOOK", 0.05)

    async def story(chat):
        chat.post("I am allergic to nuts.")
        await chat.said(1)
        chat.post("And to eggs.")
        await chat.said(2)
        await chat.until(lambda: any("has ended" in line for line in chat.told))
        chat.post("hello again")
        await chat.said(3)

    _chat, model = play(
        root,
        home,
        story,
        "Noted.",
        "Noted too.",
        call("memory", operations=[{"action": "add", "content": "Allergic to nuts."}]),
        "Saved.",
        "Hello.",
        config="  idle_minutes: 0.005\n",
    )
    said = [message.text for message in model.requests[-1].messages[1:]]
    assert said == ["hello again"]
    with closing(SqliteStore(home / "notebook.db")) as store:
        second, first = (row for row in store.sessions() if row.source == "chat")
        assert first.ended is not None and second.ended is None


def test_hygiene_compresses_before_the_turn(root, home):
    """A conversation that fills the window is made shorter before the next message is answered."""

    async def story(chat):
        for number in range(6):
            chat.post(f"{number} " + "word " * 1_200)
            await chat.said(number + 1)

    answers = [f"Answer {number}. " + "text " * 800 for number in range(30)]
    chat, model = play(root, home, story, *answers, window=12_000)
    assert len(chat.sent) == 6
    sizes = [sum(len(m.text) for m in request.messages) for request in model.requests]
    assert max(sizes) < 12_000 * 4


def test_what_a_job_says_is_sent_once(root, home, monkeypatch):
    monkeypatch.setattr("hermes_nb.extras.gateway.service.LOOK", 0.05)
    home.mkdir()
    schedule = Schedule(home)
    job = schedule.add(
        Job(cron="0 0 1 1 *", zone="UTC", what="x", directory=str(root), to="memory:kitchen")
    )
    other = schedule.add(Job(cron="0 0 1 1 *", zone="UTC", what="x", directory=str(root)))
    for each, text in ((job, "Three new rows."), (other, "Not for the chat."), (job, "One more.")):
        schedule.settle(schedule.begin(each.id, at_once=True), "done", text)

    async def story(chat):
        await chat.said(2)
        await asyncio.sleep(0.2)

    chat, _ = play(root, home, story)
    again, _ = play(root, home, lambda chat: asyncio.sleep(0.3))
    assert {answer.chat for answer in chat.sent} == {"kitchen"}
    assert [answer.text for answer in chat.sent] == ["Job 1: Three new rows.", "Job 1: One more."]
    assert len({answer.key for answer in chat.sent}) == 2
    assert again.sent == [] and chat.acknowledged == []
    schedule.close()


def begun(home, root, *rows, state="begun"):
    """Leave what a kill leaves: a message that was begun, and these rows of its turn."""

    async def story(chat):
        chat.post("hello")
        await chat.said(1)

    play(root, home, story, "Hello.")
    with closing(SqliteStore(home / "notebook.db")) as store:
        (session,) = store.sessions()
        journal = Journal(home / "gateway" / "journal.db")
        service = Memory()
        service.post("")
        service.post("the task")
        from hermes_nb.extras.gateway.journal import Entry

        entry = Entry(adapter="memory", message=service.posted[1])
        journal.take(entry)
        journal.note(
            Entry(
                adapter="memory", message=service.posted[1], state=state, session=session.id,
                began=time.time(), parts=("Answered.",) if state == "answered" else (),
                tried=state == "answered",
            )
        )  # fmt: skip
        journal.close()
        for row in rows:
            store.append(session.id, row)


ASKED = Message.user("the task")
CALLED = Message.assistant("", calls=[call("list_files")])
NOTED = Message.user("is this still there?")


@pytest.mark.parametrize(
    ("rows", "steps", "asked"),
    [
        ((), ("Done.",), "the task"),
        ((ASKED,), ("Done.",), "[The gateway was stopped"),
        ((ASKED, CALLED), ("Done.",), "[The gateway was stopped"),
        ((ASKED, Message.assistant("Done.")), (), ""),
        (
            (ASKED, CALLED, NOTED, Message.assistant("It is.")),
            ("Done.",),
            "[The gateway was stopped",
        ),
        ((ASKED, Message.assistant("Done."), NOTED, CALLED), (), ""),
    ],
    ids=[
        "not yet asked",
        "asked",
        "a call without a result",
        "answered, but not noted",
        "gone on with in a notebook",
        "answered, and gone on with",
    ],
)
def test_a_killed_turn_is_gone_on_with(root, home, rows, steps, asked):
    begun(home, root, *rows)

    async def story(chat):
        await chat.said(1)

    chat, model = play(root, home, story, *steps)
    assert [(a.text, a.to) for a in chat.sent] == [("Done.", "m2")]
    assert [r.messages[-1].text.startswith(asked) for r in model.requests] == [True] * len(steps)


@pytest.mark.parametrize("deduplicates", [True, False])
def test_an_answer_that_may_have_been_sent_is_marked_where_nothing_deduplicates(
    root, home, deduplicates
):
    begun(home, root, state="answered")

    async def story(chat):
        await chat.said(1)

    chat, model = play(root, home, story, service=Memory(deduplicates=deduplicates))
    assert [(a.text, a.again) for a in chat.sent] == [("Answered.", not deduplicates)]
    assert model.requests == []


def test_a_message_that_is_delivered_again_is_acknowledged_and_not_answered(root, home):
    async def story(chat):
        chat.post("hello")
        await chat.said(1)
        await chat.until(lambda: chat.acknowledged)

    play(root, home, story, "Hello.")

    async def again(chat):
        chat.post("hello")
        await chat.until(lambda: chat.acknowledged)

    chat, model = play(root, home, again)
    assert chat.sent == [] and model.requests == []


def test_what_was_answered_stays_known_when_the_journal_is_damaged(root, home):
    async def story(chat):
        chat.post("hello")
        await chat.said(1)
        await chat.until(lambda: chat.acknowledged)

    play(root, home, story, "Hello.")
    with (home / "gateway" / "journal.db").open("r+b") as file:
        file.write(b"x" * 100)

    async def again(chat):
        chat.post("hello")
        await chat.until(lambda: chat.acknowledged)
        chat.post("and now?")
        await chat.said(1)

    chat, model = play(root, home, again, "Here.")
    assert [answer.text for answer in chat.sent] == ["Here."]
    assert [m.text for m in model.requests[0].messages[1:]] == ["hello", "Hello.", "and now?"]
    assert any("1 message could be saved into a new one" in line for line in chat.told)


def test_a_policy_that_comes_while_it_runs_ends_it_at_the_next_message(root, home, administered):
    async def story(chat):
        chat.post("hello")
        await chat.said(1)
        await chat.until(lambda: chat.acknowledged)  # which comes after the answer
        administered(gateway={"memory": "force-off"})
        chat.post("still there?")
        await chat.until(lambda: len(asyncio.all_tasks()) == 1)

    chat = Memory()
    with pytest.raises(ExceptionGroup) as ended:
        play(root, home, story, "Hello.", "Never.", service=chat)
    (why,) = ended.value.exceptions
    assert isinstance(why, ConfigError) and "hermes_policy.json" in str(why)
    assert [answer.to for answer in chat.sent] == ["m1"] and chat.acknowledged == ["m1"]
