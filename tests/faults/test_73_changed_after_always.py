"""A script that has changed since *Always* asks again."""

from __future__ import annotations

from hermes_nb.models.scripted import call

from tests.contract.safety.people import Person, hermes
from tests.contract.safety.test_questions import work

__all__ = ["work"]


def test_73_always_ends_when_the_script_changes(work):
    script = work / "s.sh"
    script.write_text("echo one > out.txt\n", encoding="utf-8")
    person = Person("always")
    step = call("terminal", command="mkdir -p a && bash s.sh")
    with hermes(work, step, "1", step, "2", step, "3", approve=person) as agent:
        agent.ask("go")
        assert len(person.asked) == 1
        assert "echo one > out.txt" in person.asked[0].shown
        assert "while the files that it names stay as they are" in person.asked[0].lasting
        agent.ask("again")
        assert len(person.asked) == 1
        script.write_text("echo two > out.txt\n", encoding="utf-8")
        agent.ask("and again")
    assert len(person.asked) == 2
    assert "echo two > out.txt" in person.asked[1].shown
