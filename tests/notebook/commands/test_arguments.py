"""What commands take is parsed as `values` in commands.toml declares it."""

from __future__ import annotations

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.commands.table import COMMANDS

SPELLINGS = [
    ("undo", {"turn": "", "force": False, "of": ""}),
    ("undo 3 --force", {"turn": 3, "force": True}),
    ("undo --force 3 of my last session", {"turn": 3, "force": True, "of": "my last session"}),
    ("retry edit", {"turns": "", "edit": True}),
    ("retry --force 2 edit", {"turns": 2, "edit": True, "force": True}),
    ("diff 4", {"turn": 4}),
    ("fix --cell c1 don't round", {"cell": "c1", "wish": "don't round"}),
    ("fix --cell 5", {"cell": "5", "wish": ""}),
    ("fix use --cell  here", {"cell": "", "wish": "use --cell  here"}),
    ("compress --undo", {"undo": True}),
    ("compress what  we 'said'", {"undo": False, "focus": "what  we 'said'"}),
    ("sessions delete a b --yes", {"session": "a b", "yes": True, "older_than": None}),
    ("sessions delete --older-than=90d", {"session": "", "older_than": 90}),
    ("sessions delete --yes --older-than 90", {"yes": True, "older_than": 90}),
    ("export jsonl My title", {"action": "jsonl", "session": "My title"}),
    ("export My title", {"action": "", "session": "My title"}),
    ("memory add user Isn't  here", {"action": "add", "which": "user", "text": "Isn't  here"}),
    ("memory add Uses -O2", {"which": "", "text": "Uses -O2"}),
    ("memory edit user 1 Seals", {"which": "user", "number": "1", "text": "Seals"}),
    ("memory approve 1, 3", {"action": "approve", "rest": "1, 3"}),
    ("skills show code/a", {"action": "show", "skill": "code/a"}),
    ("trust --forget AGENTS.md", {"name": "AGENTS.md", "forget": True}),
    ("trust AGENTS.md", {"action": "", "name": "AGENTS.md", "forget": False}),
    ("trust kernel notes.md", {"action": "", "name": "kernel notes.md"}),
    ("models forget http://h/v1", {"action": "forget", "address": "http://h/v1"}),
    ("cassette AUTO", {"action": "auto"}),
    ("key sk-secret words", {"action": "", "variable": "sk-secret words"}),
    ("key openai sk-secret", {"action": "", "variable": "openai sk-secret"}),
    ("mcp add n K=V uvx -q x", {"action": "add", "rest": "n K=V uvx -q x"}),
    ("mcp test n", {"action": "test", "server": "n"}),
    ("doctor --offline", {"offline": True}),
    ("tools files, notebook", {"action": "", "tools": "files, notebook"}),
    ('map --into t "What is it?" a.md', {"into": "t", "words": ["What is it?", "a.md"]}),
    ('map "What?" a.md --parallel 3 --retry', {"parallel": 3, "retry": True}),
]  # fmt: skip
WRONG = [
    ("undo one", "not a number"), ("undo 1 2", "'2' is not understood"),
    ("undo --hard", "no option --hard"), ("diff --force", "not a number"),
    ("rename", "TITLE is missing"), ("memory remove", "NUMBER is missing"),
    ("memory fly", "takes show, add"), ("status now", "takes no values"),
    ("approve maybe", "takes ask, edits, all, never"), ("doctor --fast", "takes --offline"),
    ("sessions delete --older-than soon", "invalid number value"), ("fix --sell 1", "no option"),
    ('map "What', "No closing quotation"), ("map x --max-cost -1", "number above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "given"), SPELLINGS)
def test_a_spelling_is_understood(line, given):
    name, _, words = line.partition(" ")
    found = vars(COMMANDS[name].arguments(words))
    assert {key: found[key] for key in given} == given


@pytest.mark.parametrize(("line", "why"), WRONG)
def test_a_wrong_one_says_why_and_where_help_is(line, why):
    name, _, words = line.partition(" ")
    with pytest.raises(ConfigError, match=why) as caught:
        COMMANDS[name].arguments(words)
    assert f"`%hermes help {name}`" in str(caught.value) and "\n" not in str(caught.value)
