"""A skill that is in use when the conversation is compressed: kept, or the way back is named."""

from __future__ import annotations

import pytest
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call

LIMIT = 6_000
"""Tokens after which the conversation is compressed."""
STEPS = [f"Rule {n}: rinse the sieve before pouring batch {n}." for n in range(60)]
SKILL = "---\nname: draw\ndescription: How to draw penguins.\n---\n# How\n" + "\n".join(STEPS)
READ = 12
"""Files that are read in a turn."""
SUMMARY = "## Goal\nDraw penguins."


def story(home, work, engine, *, turns):
    """Load a skill, plan by it, read for some turns; return the model that was asked."""
    skill = home / "skills" / "draw" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text(SKILL, encoding="utf-8")
    (home / "config.yaml").write_text(
        f"compression:\n  max_prompt_tokens: {LIMIT}\n  protect_last_n: 4\n"
        f"context:\n  engine: {engine}\n",
        encoding="utf-8",
    )
    work.mkdir()
    for n in range(READ):
        words = "\n".join(f"penguin {n} has a beak of {n * 31 + k} mm" for k in range(60))
        (work / f"{n}.txt").write_text(words, encoding="utf-8")
    reading = [*(call("read_file", path=f"{n}.txt") for n in range(READ)), "Done."]
    planned = call("todo", items=["[>] sieve as Rule 7 says", "[ ] draw"])
    model = ScriptedModel(
        ["Hi.", call("skill_view", name="draw"), planned, *reading * turns], window=2 * LIMIT
    )
    summaries = ScriptedModel([SUMMARY] * 30, window=2 * LIMIT)
    with Hermes(model, home=home, cwd=work, auxiliary=summaries) as hermes:
        hermes.ask("Hello!")
        for n in range(turns):
            turn = hermes.ask(f"Draw penguins as the skill says, part {n}.")
            assert turn.reason == "answered", turn.error
    return model


# 97: A skill in use when the conversation is compressed: kept, or the way back named.
@pytest.mark.parametrize("turns", [1, 5])
@pytest.mark.parametrize("engine", ["compressor", "lossless"])
def test_97_a_loaded_skill(home, tmp_path, engine, turns):
    model = story(home, tmp_path / "work", engine, turns=turns)
    seen = set()
    for request in model.requests[3:]:
        text = "\n".join(message.text for message in request.messages[1:])
        whole = all(step in text for step in STEPS)
        assert whole or "skill_view('draw')" in text
        loaded = any(message.name == "skill_view" for message in request.messages)
        seen.add("whole" if whole else "shortened" if loaded else "gone")
        if not whole and not loaded:
            assert "sieve as Rule 7 says" in text, "the plan rests on it"
    assert seen == ({"whole", "shortened"} if turns == 1 else {"whole", "shortened", "gone"})
