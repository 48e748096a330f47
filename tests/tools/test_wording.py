"""What a write would make last, as the guard hears of it from the tools that remember."""

from __future__ import annotations

from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.skills.library import Library
from hermes_nb.tools.memory import memory_tools
from hermes_nb.tools.skills import skills


def test_memory_says_every_text_that_it_would_keep(home):
    (memory,) = memory_tools(CuratedMemory(home))
    steps = [{"action": "add", "content": "one"}, {"action": "remove", "old_text": "two"}]
    assert memory.wording({"action": "add", "content": "tea"}) == "tea"
    assert memory.wording({"operations": steps}) == "one"
    assert memory.wording({"action": "remove", "old_text": "two", "operations": None}) == ""


def test_skills_say_every_text_that_they_would_keep(tmp_path):
    manage = skills(Library([tmp_path])).get("skill_manage")
    assert manage.wording({"action": "create", "content": "steps", "file_content": None}) == "steps"
    assert manage.wording({"action": "patch", "old_string": "a", "new_string": "b"}) == "b"
    assert manage.wording({"action": "write_file", "file_content": "c"}) == "c"
