"""The prompt's layers: their order, what leaves nothing behind, and that they can be told apart."""

from __future__ import annotations

from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.prompt.builder import (
    ENFORCEMENT,
    IDENTITY,
    MEMORY_GUIDANCE,
    RECALL_GUIDANCE,
    SKILLS_GUIDANCE,
    Prompt,
    PromptContext,
    PromptTexts,
    build,
)
from hypothesis import given
from hypothesis import strategies as st

FULL = PromptTexts(
    identity="SOUL",
    provider="PROVIDER",
    message="MESSAGE",
    memory="MEMORY",
    user="USER",
    skills="SKILLS",
    project="PROJECT",
)
ORDER = [
    *("SOUL", "PROVIDER", "MESSAGE", "MEMORY", "USER", "SKILLS", "PROJECT", "Date: "),
    "Your answer",
]
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


def toolset(*names):
    return Toolset(
        Tool(name=name, description="", parameters={}, run=lambda c, a: "") for name in names
    )


def occasion(*tools, model="m", **options):
    return PromptContext(
        tools=toolset(*tools), model=model, session_id="s1", date="2026-11-22", **options
    )


def test_the_layers_stand_in_order():
    text = build(FULL, occasion()).text
    places = [text.index(word) for word in ORDER]
    assert places == sorted(places)


def test_an_empty_layer_leaves_nothing_behind():
    prompt = build(PromptTexts(), occasion())
    assert [layer.name for layer in prompt.layers] == ["identity", "date and session", "platform"]
    assert prompt.text.startswith(IDENTITY)
    assert "\n\n\n" not in prompt.text


def test_guidance_is_given_only_for_tools_that_are_on():
    for tools, said in (
        (("memory",), MEMORY_GUIDANCE),
        (("session_search",), RECALL_GUIDANCE),
        (("skill_view", "skill_manage"), SKILLS_GUIDANCE),
    ):
        assert said in build(PromptTexts(), occasion(*tools)).text
        assert said not in build(PromptTexts(), occasion("read_file")).text


def test_the_model_is_told_what_the_notebook_keeps_and_what_paths_mean():
    text = build(PromptTexts(), occasion("run_python", "read_file", marked=True)).text
    for told in ("leaves no trace in the notebook", "Relative paths start in", "`<untrusted-…>`"):
        assert told in text
    plain = build(PromptTexts(), occasion("memory")).text
    assert "no trace" not in plain and "Relative paths" not in plain


def test_tool_use_is_enforced_by_family_or_by_force():
    claude = "claude-sonnet-4-5"
    for model, enforce, expected in (
        *(("openai/gpt-5", None, True), (claude, None, False)),
        *((claude, True, True), ("gpt-5", False, False)),
    ):
        prompt = build(PromptTexts(), occasion("read_file", model=model, enforce=enforce))
        assert (ENFORCEMENT in prompt.text) is expected
        assert ENFORCEMENT not in build(PromptTexts(), occasion(model=model, enforce=enforce)).text


@given(st.builds(PromptTexts, **dict.fromkeys(("identity", "memory", "skills", "project"), texts)))
def test_a_stored_prompt_still_knows_its_layers(material):
    prompt = build(material, occasion("memory"))
    assert Prompt.recognised(prompt.text, prompt) == prompt


def test_a_layer_that_changed_since_goes_by_its_place():
    stored = build(PromptTexts(memory="likes tea", project="tabs"), occasion("memory"))
    now = build(PromptTexts(memory="likes coffee", project="tabs"), occasion("memory"))
    layers = {layer.name: layer.text for layer in Prompt.recognised(stored.text, now).layers}
    assert layers["memory"] == "likes tea"
    assert layers["project"] == "tabs"


@given(texts, st.builds(PromptTexts, identity=texts, memory=texts))
def test_any_text_is_given_back(text, material):
    assert Prompt.recognised(text, build(material, occasion())).text == text


@given(texts)
def test_the_text_is_normalised_once(text):
    prompt = build(PromptTexts(project=text), occasion())
    assert build(PromptTexts(project=prompt.text), occasion()).layers[1].text == prompt.text


def test_a_note_is_added_once():
    prompt = build(PromptTexts(), occasion()).with_note("Earlier messages were summarised.")
    assert prompt.with_note("Again.").text.count("\n\nAgain.") == 1
    assert "Earlier messages" not in prompt.with_note("Again.").text
