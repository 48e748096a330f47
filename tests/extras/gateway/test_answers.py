"""What ties an answer to its question: a reply, the order of a chat, or the question's number."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from hermes_nb.extras.gateway.journal import Entry, Journal
from hermes_nb.models.scripted import ScriptedModel, call

from tests.extras.gateway.services import Memory, serving

SOON = "gateway: {question_minutes: 0.005}"


class Asked(Memory):
    """A service with a user who reads the questions."""

    async def question(self, number):
        """Wait for a question, the first being 1; return its key and the number in it."""

        def found():
            return [each for each in self.sent if "wants to use" in each.text]

        await self.until(lambda: len(found()) >= number)
        asked = found()[number - 1]
        code = re.search(r"yes (\d{4})", asked.text)
        return asked.key, code[1] if code else ""

    async def settled(self):
        """Wait until everything that was written is acknowledged."""
        await self.until(lambda: len(self.acknowledged) == len(self.posted))


def wrote(path):
    return call("write_file", path=path, content="x")


def talk(home, root, story, *steps, service=None, config="{}"):
    """Run a story in which the model plays these steps; return the service."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(config)

    async def run():
        chat = service or Asked()
        async with serving(chat, root=root, home=home, model=ScriptedModel(steps)):
            await story(chat)
        return chat

    return asyncio.run(run())


def test_a_yes_from_before_the_question_does_not_count(home, tmp_path):
    async def story(chat):
        chat.post("write a")
        await chat.question(1)
        chat.post("yes", after="")
        assert (await chat.said(2))[1].startswith(
            "Please answer the question above first. Reply yes"
        )
        assert not (tmp_path / "a").exists()
        chat.post("yes")  # below the reminder
        await chat.settled()

    talk(home, tmp_path, story, wrote("a"), "Done.", "Yes what?")
    assert (tmp_path / "a").exists()


def test_a_late_yes_does_not_count_for_the_next_question(home, tmp_path):
    """Until a question is answered by its number, a bare yes might be for one that has lapsed."""

    async def story(chat):
        chat.post("write a")
        _, number = await chat.question(1)
        assert not number
        await chat.said(3)  # the question, that it lapsed, and the answer
        (home / "config.yaml").write_text("{}")
        chat.post("write b")
        _, number = await chat.question(2)
        other = str(10_999 - int(number))
        for late in ("yes", "always", f"yes {other}", f"{other}: yes"):
            chat.post(late)
        await chat.said(8)
        assert not (tmp_path / "b").exists()
        chat.post(f"Yes {number}.")
        await chat.settled()
        assert (tmp_path / "b").exists()
        chat.post("write c")
        assert (await chat.question(3))[1] == ""  # nothing is late any more
        chat.post(f"yes {number}")  # as does one that is repeated
        chat.post("yes")
        await chat.settled()

    steps = wrote("a"), "No.", wrote("b"), "Yes.", *["What?"] * 4, wrote("c"), "Yes.", "What?"
    talk(home, tmp_path, story, *steps, config=SOON)
    assert not (tmp_path / "a").exists() and (tmp_path / "c").exists()


def test_a_reply_answers_the_question_that_it_replies_to_and_no_other(home, tmp_path):
    async def story(chat):
        chat.post("write a")
        lapsed, _ = await chat.question(1)
        await chat.said(3)
        (home / "config.yaml").write_text("{}")
        chat.post("write b")
        asked, number = await chat.question(2)
        for other in (lapsed, "somebody else's"):
            chat.post("yes", replies_to=other)
            chat.post(f"yes {number}", replies_to=other)
        await chat.said(8)
        assert not (tmp_path / "b").exists()
        chat.post("yes", replies_to=asked, after="")
        await chat.settled()

    steps = wrote("a"), "No.", wrote("b"), "Yes.", *["What?"] * 4
    talk(home, tmp_path, story, *steps, config=SOON)
    assert (tmp_path / "b").exists()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_question_that_ended_otherwise_may_be_answered_late_too(home, tmp_path, end):
    async def story(chat):
        if end == "stop":
            chat.post("write a")
            await chat.question(1)
            chat.post("/stop")
            await chat.said(2)
            chat.post("write b")
        _, number = await chat.question(1 + (end == "stop"))
        chat.post("yes")
        await chat.until(lambda: chat.sent[-1].text.startswith("Please answer the question"))
        assert not (tmp_path / "b").exists()
        chat.post(f"yes {number}")
        await chat.settled()

    service = Asked()
    if end == "kill":
        home.mkdir()
        service.post("write b")
        journal = Journal(home / "gateway" / "journal.db")
        entry = Entry(adapter="memory", message=service.posted[0], state="begun", session="gone")
        journal.take(entry)
        journal.note(entry)
        journal.close()
    steps = wrote("b"), "Done.", "What?"
    talk(home, tmp_path, story, *([wrote("a")] if end == "stop" else []), *steps, service=service)
    assert (tmp_path / "b").exists()


@pytest.mark.parametrize("binding", ["reply", "number"])
def test_where_a_service_has_no_order_a_bare_yes_counts_for_nothing(home, tmp_path, binding):
    async def story(chat):
        chat.post("write a")
        key, number = await chat.question(1)
        asked = chat.sent[0].text
        assert ("Reply to this message with yes" in asked) is (binding == "reply") is (not number)
        chat.post("yes")
        reminder = (await chat.said(2))[1]
        assert ("the question itself" in reminder) is (binding == "reply")
        if binding == "reply":
            chat.post("yes", replies_to=chat.sent[1].key)  # the reminder is not the question
            await chat.said(3)
        assert not (tmp_path / "a").exists()
        reply = {"replies_to": key} if binding == "reply" else {}
        chat.post(f"yes {number}", **reply)
        await chat.settled()

    steps = wrote("a"), "Done.", "What?", "What?"
    talk(home, tmp_path, story, *steps, service=Asked(binding=binding))
    assert (tmp_path / "a").exists()


def test_where_nobody_is_asked_model_and_user_learn_why(home, tmp_path):
    def told(request):
        assert "the sender is unknown" in request.messages[-1].text
        return "I may not."

    async def story(chat):
        chat.post("write a")
        chat.post("hello")
        await chat.said(2)

    service = Asked(unasked="the sender is unknown")
    talk(home, tmp_path, story, wrote("a"), told, "Hello.", service=service)
    refused, hello = (each.text for each in service.sent)
    assert "I may not." in refused and "the sender is unknown" in refused
    assert hello == "Hello."
    assert not (tmp_path / "a").exists()


def test_choices_are_answered_by_number_once_a_question_has_lapsed(home, tmp_path):
    config = "hermes_nb:\n  toolsets:\n    default: [default, clarify]\n"

    async def story(chat):
        chat.post("write a")
        await chat.said(3)
        (home / "config.yaml").write_text(config)
        chat.post("plan")
        asked = (await chat.said(4))[3]
        number = re.search(r"Reply with (\d{4}) and one of them", asked)[1]
        chat.post("2")
        await chat.said(5)
        chat.post(f"{number}: 2")
        await chat.settled()

    asked = call("clarify", question="How?", choices=["train", "plane"])

    def last(request):
        return request.messages[-1].text

    chat = talk(
        home, tmp_path, story, wrote("a"), "No.", asked, last, "Two?", config=f"{config}{SOON}"
    )
    assert "The user: plane" in [each.text for each in chat.sent]


def test_of_many_messages_only_those_for_the_open_question_count(home, tmp_path):
    """200 messages by a seed: late, early, foreign, for other questions; the model never runs."""
    rng = random.Random(2)

    async def story(chat):
        chat.post("write a")
        await chat.said(3)
        (home / "config.yaml").write_text("{}")
        chat.post("write b")
        _, number = await chat.question(2)
        wrong = [str(each) for each in range(1_000, 10_000, 7) if str(each) != number]
        keys = [each.key for each in chat.sent[:3]]
        for _ in range(200):
            word = rng.choice(("yes", "always", "y", "Yes, please", "outside", "no", "go ahead"))
            shape = rng.choice(("{w}", "{w} {n}", "{n} {w}", "{w}, #{n}!", "{w} {n}0"))
            named = rng.choice(wrong)
            text = shape.format(w=word, n=named)
            who = rng.choice(("ada", "bob", "mallory"))
            fields = rng.choice(({}, {"after": ""}, {"replies_to": rng.choice((*keys, "x"))}))
            if who != "ada" and rng.random() < 0.5:  # the right number, by somebody else
                text, fields = f"yes {number}", {}
            chat.post(text, user=who, **fields)
        sent = sum(each.user == "ada" for each in chat.posted) - 2
        await chat.until(
            lambda: sum("Please answer the question" in each.text for each in chat.sent) == sent
        )
        assert not (tmp_path / "b").exists()
        chat.post(f"no {number} not now")
        await chat.until(lambda: "Refused." in [each.text for each in chat.sent])

    def refused(request):
        assert "not now" in request.messages[-1].text
        return "Refused."

    talk(home, tmp_path, story, wrote("a"), "No.", wrote("b"), refused, *["?"] * 300, config=SOON)
    assert not (tmp_path / "b").exists()


def test_who_writes_before_the_question_is_there_is_told_that_it_waits(home, tmp_path):
    class Quick(Memory):
        async def send(self, answer):
            await super().send(answer)
            if len(self.sent) == 1:  # the question: it is on its way, and its key not known yet
                self.post("what was it again?")
                await asyncio.sleep(0.2)

    home.mkdir()
    chat = Quick()
    model = ScriptedModel([call("write_file", path="a", content="x"), "Done.", "It was that."])

    async def story():
        async with serving(chat, root=tmp_path, home=home, model=model):
            chat.post("write")
            assert "answer the question above first" in (await chat.said(2))[1]
            chat.post("yes")
            return await chat.said(4)

    assert asyncio.run(story())[2:] == ["Done.", "It was that."]
