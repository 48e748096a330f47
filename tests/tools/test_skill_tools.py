from __future__ import annotations

import asyncio

import pytest
from hermes_nb.agent.session.context_usage import schema_tokens
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.events import ApprovalAsked
from hermes_nb.core.protocols import Approval
from hermes_nb.core.tools import Place
from hermes_nb.safety.guard import Guard
from hermes_nb.skills.library import Library
from hermes_nb.tools.asking import asking
from hermes_nb.tools.skills import skills

from tests.skills.support import put, text
from tests.tools.support import Answers, context_for, run


@pytest.fixture
def root(tmp_path):
    return tmp_path / "skills"


@pytest.fixture
def library(root):
    return Library([root])


@pytest.fixture
def tools(library):
    return skills(library)


def test_the_schemas_are_small(tools):
    assert schema_tokens(tools) < 650


def test_list(tools, root):
    listing = tools.get("skills_list")
    assert "no skills yet" in run(listing)
    put(root, "draw", category="data")
    put(root, "mail", text("mail", "Sends letters."))
    assert run(listing).splitlines() == [
        *("general:", "- mail: Sends letters.", "data:", "- draw: Draws a chart from a table."),
    ]
    assert run(listing, query="charts") == "- draw: Draws a chart from a table."
    assert "categories: data (1), general (1)" in run(listing, query="submarine")
    assert "'nowhere'" in run(listing, category="nowhere")


def test_a_long_list_is_counted(tools, root):
    for n in range(105):
        put(root, f"s-{n}")
    assert run(tools.get("skills_list")).endswith("[5 more; narrow it by query or category]")


def test_view(tools, root, library):
    put(root, "draw", files={"references/a.md": "# A", "assets/b.png": b"\x89PNG\0"})
    view = tools.get("skill_view")
    shown = run(view, name="draw")
    head, _, body = shown.partition("\n\n")
    assert head.splitlines() == [
        f"[skill draw, SKILL.md; folder {root / 'draw'}]",
        "[files: references/a.md, assets/b.png]",
        "[Draws a chart from a table.]",
    ]
    assert body == "# How\n\n1. Load the table.\n2. Draw the axes."
    assert run(view, name="draw", file_path="references/a.md").endswith("\n\n# A")
    assert "binary, 5 bytes" in run(view, name="draw", file_path="assets/b.png")
    assert library.usage()["draw"].uses == 1
    with pytest.raises(ToolError, match="nearest: draw"):
        run(view, name="drwa")


def test_the_frontmatter_can_be_read_and_patched(tools, root):
    put(root, "draw")
    raw = run(tools.get("skill_view"), name="draw", file_path="SKILL.md")
    assert raw.endswith(text("draw"))
    old = "description: Draws a chart from a table."
    assert old in raw
    assert old not in run(tools.get("skill_view"), name="draw")
    manage = tools.get("skill_manage")
    new = "description: Draws a chart, never a pie."
    run(manage, action="patch", name="draw", old_string=old, new_string=new)
    assert "[Draws a chart, never a pie.]" in run(tools.get("skill_view"), name="draw")


@pytest.mark.parametrize("head", ["---\r\nname: draw\r\n{}---\r\n", "\ufeff---\nname: draw\n{}"])
def test_an_odd_frontmatter_is_left_out_as_well(tools, root, head):
    put(root, "draw", head.format("description: Draws.\n") + "\n# How\n")
    shown = run(tools.get("skill_view"), name="draw")
    assert shown.endswith("[Draws.]\n\n# How")


def test_manage_says_what_happened(tools, library):
    manage = tools.get("skill_manage")
    within = context_for(manage, place=Place(session="s1"))
    details = {"name": "draw", "content": text("draw"), "category": "data"}
    said = run(manage, within=within, action="create", **details)
    assert said == "created skill 'draw' in data"
    assert library.usage()["draw"].origin.session == "s1"
    said = run(manage, action="patch", name="draw", old_string="axes", new_string="ticks")
    assert "+2. Draw the ticks." in said
    with pytest.raises(ToolError, match="was not found"):
        run(manage, action="patch", name="draw", old_string="absent", new_string="x")
    assert manage.check({"action": "rename", "name": "draw"})


def test_the_user_sees_what_would_be_written_and_may_decline(tools, root):
    person = Answers(Approval("deny"))
    manage = asking(tools, Guard("ask"), person).get("skill_manage")
    with pytest.raises(ToolDenied):
        run(manage, action="create", name="draw", content=text("draw"))
    assert text("draw") in person.asked[0].shown
    assert not root.exists() or [p.name for p in root.iterdir()] == [".hermes_nb"]


def test_what_cannot_be_done_is_not_asked(tools):
    person = Answers()
    events = []
    manage = asking(tools, Guard("ask"), person).get("skill_manage")
    context = context_for(manage, emit=events.append)
    with pytest.raises(ToolError, match="not a valid skill name"):
        run(manage, within=context, action="create", name="../x", content=text("x"))
    assert person.asked == []
    assert not any(isinstance(event, ApprovalAsked) for event in events)


def test_gists(tools):
    assert tools.get("skills_list").describe({}) == "all"
    assert tools.get("skill_view").describe({"name": "a", "file_path": "b"}) == "a b"
    assert tools.get("skill_manage").describe({"action": "patch", "name": "a"}) == "patch a"


def test_a_preview_of_what_cannot_be_says_why(tools):
    preview = tools.get("skill_manage").preview
    with pytest.raises(ToolError, match="no name"):
        asyncio.run(preview({"action": "create", "content": "x"}))
