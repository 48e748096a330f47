from __future__ import annotations

import json
import re
import stat
import threading
from pathlib import Path

import pytest
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.events import ApprovalAsked, ApprovalGiven
from hermes_nb.core.messages import Image
from hermes_nb.core.protocols import Approval
from hermes_nb.core.tools import Risk, ToolOutput, Toolset
from hermes_nb.safety.guard import Guard
from hermes_nb.tools import wrappers
from hermes_nb.tools.asking import asking
from hermes_nb.tools.schema import tool
from hermes_nb.tools.wrappers import limited
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.support import Answers, context_for
from tests.tools.support import run as raw
from tests.tools.support import told as run


@tool
def say(text: str) -> str:
    """Say it."""
    return text


@tool
async def say_later(text: str) -> str:
    """Say it later."""
    return text


@tool
def fail(text: str) -> str:
    """Fail with it."""
    raise ToolDenied(text)


@tool(cap=2_000)
def draw(text: str) -> ToolOutput:
    """Draw it."""
    return ToolOutput(text, (Image("x"),))


SET = Toolset([say, say_later, fail, draw])


@pytest.mark.parametrize("name", ["say", "say_later"])
def test_long_output_keeps_head_and_tail(name):
    text = "".join(f"{n}\n" for n in range(100_000))
    capped = limited(SET).get(name)
    assert run(capped, text="x") == "x"
    shown = run(capped, text=text)
    assert len(shown) <= 50_000
    assert shown.startswith("0\n1\n")
    assert shown.endswith("99999\n")
    assert "characters dropped" in shown
    assert "whole output" not in shown


def test_the_whole_output_is_kept_for_its_owner_only(tmp_path):
    spill = tmp_path / "state" / "spill"
    secret = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
    shown = run(limited(SET, spill=spill).get("say"), text=f"{secret}\n" + "x" * 60_000)
    [kept] = spill.iterdir()
    assert f"the whole output is in {kept}" in shown
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(spill.stat().st_mode) == 0o700
    text = kept.read_text(encoding="utf-8")
    assert secret not in text
    assert text.count("x") >= 60_000


@tool
def count(items: int) -> list[str]:
    """Count."""
    return ["line"] * items


def test_a_result_that_is_no_text_is_capped_as_the_text_it_becomes():
    shown = run(limited(Toolset([count])).get("count"), items=100_000)
    assert len(shown) <= 50_000
    assert "characters dropped" in shown


def test_one_output_never_takes_the_file_of_another(tmp_path, monkeypatch):
    """Another session counts its turns and calls from 1 as well."""
    for text in ("a" * 60_000, "b" * 60_000, "a" * 60_000):
        shown = run(limited(SET, spill=tmp_path / "spill").get("say"), text=text)
        (path,) = re.findall(r"the whole output is in (\S+) \.\.\.", shown)
        assert Path(path).read_text(encoding="utf-8") == text
    kept = {path.read_text(encoding="utf-8")[0] for path in (tmp_path / "spill").iterdir()}
    assert kept == {"a", "b"}
    monkeypatch.setattr(wrappers, "KEPT", 3)
    for n in range(6):
        run(limited(SET, spill=tmp_path / "spill").get("say"), text=f"{n}" * 60_000)
    kept = {path.read_text(encoding="utf-8")[0] for path in (tmp_path / "spill").iterdir()}
    assert kept == {"3", "4", "5"}


def test_a_spill_that_cannot_be_written_costs_only_the_file(tmp_path):
    (tmp_path / "file").touch()
    shown = run(limited(SET, spill=tmp_path / "file").get("say"), text="x" * 60_000)
    assert "characters dropped ...]" in shown


def test_a_tool_may_have_a_cap_of_its_own():
    shown = raw(limited(SET).get("draw"), text="x" * 5_000)
    assert len(shown.text) <= 2_000
    assert shown.images == (Image("x"),)


def test_what_a_failing_tool_says_is_capped_and_keeps_its_kind():
    with pytest.raises(ToolDenied) as caught:
        run(limited(SET).get("fail"), text="x" * 60_000)
    assert len(str(caught.value)) <= 50_000
    with pytest.raises(ToolDenied, match=r"^short$"):
        run(limited(SET).get("fail"), text="short")


def test_a_turn_has_a_budget_in_all():
    capped = limited(SET, cap=50_000, turn_cap=200_000)
    sizes = []
    for _ in range(8):
        context = context_for(say, turn=1)
        sizes.append(len(run(capped.get("say"), within=context, text="x" * 49_000)))
    assert sizes[:4] == [49_000] * 4
    assert sizes[4] <= 4_000
    assert sum(sizes) < 201_000
    last = run(capped.get("say"), within=context_for(say, turn=1), text="x" * 49_000)
    assert last == (
        "[49,000 characters of output left out: "
        "the tool output of this turn has reached its limit of 200,000 characters]"
    )
    assert len(run(capped.get("say"), within=context_for(say, turn=2), text="x" * 49_000)) == 49_000


def test_the_budget_holds_across_threads():
    capped = limited(SET, cap=1_000, turn_cap=10_000).get("say")
    results = []

    def call():
        context = context_for(say, turn=1)
        results.extend(run(capped, within=context, text="x" * 900) for _ in range(10))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result.count("x") for result in results) <= 10_000


@given(st.integers(0, 3_000), st.integers(1, 2_000))
def test_no_output_is_longer_than_its_cap(size, cap):
    shown = run(limited(SET, cap=cap).get("say"), text="x" * size)
    assert len(shown) <= max(cap, 300 + cap // 2) or size <= cap


# approval


@tool(toolset="files", risk=Risk.READ)
def peek(path: str) -> str:
    """Look."""
    return path


@tool(toolset="files", risk=Risk.WRITE, paths=["path"])
def scribble(path: str, content: str) -> str:
    """Write."""
    return f"wrote {content}"


@tool(toolset="terminal", risk=Risk.EXECUTE)
async def terminal(command: str, workdir: str | None = None) -> str:
    """Run."""
    return f"ran {command}"


TOOLS = Toolset([peek, scribble, terminal])


def guarded(approver, mode="ask"):
    return asking(TOOLS, Guard(mode), approver)


def test_a_read_is_not_wrapped():
    tools = guarded(Answers())
    assert tools.get("peek") is peek
    assert tools.get("scribble").asks({})
    assert not guarded(Answers(), "never").get("scribble").asks({})
    assert guarded(Answers(), "edits").get("terminal").asks({"command": "ls"})


def test_a_yes_runs_the_call_and_is_announced():
    approver = Answers(Approval("once"), Approval("once", "fine"))
    tools = guarded(approver)
    events = []
    context = context_for(terminal, emit=events.append)
    ran = run(tools.get("terminal"), within=context, command="mkdir x\x1b[2K")
    assert ran == "ran mkdir x\x1b[2K"
    assert run(tools.get("scribble"), path="a", content="b") == "wrote b"
    asked, given_ = events
    assert isinstance(asked, ApprovalAsked)
    assert asked.shown == "mkdir x\\x1b[2K"
    assert "It would run in a sandbox" in asked.why or "outside of the sandbox" in asked.why
    assert given_ == ApprovalGiven("c1", "once", "")
    here = {".": str(Path.cwd())}
    assert approver.asked[0].shape == json.dumps(["terminal", "mkdir x\x1b[2K", ".", here])
    assert approver.asked[1].shown == "path: a\ncontent: b"


def test_a_no_is_a_denial_with_the_users_reason():
    tools = guarded(Answers(Approval("deny", "not on Fridays"), Approval("deny")))
    with pytest.raises(ToolDenied, match="terminal was not run: the user declined: not on Fridays"):
        run(tools.get("terminal"), command="make")
    with pytest.raises(ToolDenied, match=r"the user declined\. Do not"):
        run(tools.get("terminal"), command="make")


def test_always_remembers_the_very_same_command():
    approver = Answers(Approval("always"), Approval("once"), Approval("once"))
    tools = guarded(approver)
    for command in ("mkdir a", "mkdir a", "mkdir b", "mkdir a"):
        run(tools.get("terminal"), command=command)
    run(tools.get("terminal"), command="mkdir a", workdir="sub")
    shown = [request.shown for request in approver.asked]
    assert shown == ["mkdir a", "mkdir b", "mkdir a\n(in sub)"]


def test_reading_commands_do_not_ask_and_destruction_is_refused_in_every_mode():
    assert run(guarded(Answers()).get("terminal"), command="ls -la") == "ran ls -la"
    for mode in ("ask", "edits", "all", "never"):
        with pytest.raises(ToolDenied, match="in every mode: it "):
            run(guarded(Answers(), mode).get("terminal"), command="rm -rf /")


def test_a_plain_function_that_asks_runs_in_a_thread_and_its_errors_pass():
    @tool(risk=Risk.WRITE)
    def where() -> str:
        """Fail, and say where."""
        raise ToolError(threading.current_thread().name)

    tools = asking(Toolset([where]), Guard("ask"), Answers(Approval("once")))
    with pytest.raises(ToolError, match=r"^hermes$"):
        run(tools.get("where"))


def test_both_wrappers_go_together(tmp_path):
    approver = Answers(Approval("once"))
    tools = limited(guarded(approver), cap=1_000, spill=tmp_path / "s")
    shown = run(tools.get("scribble"), path="a", content="x" * 5_000)
    assert len(shown) <= 1_000
    assert (tmp_path / "s").is_dir()
