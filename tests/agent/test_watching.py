"""What packages wrap tools with, watch turns with and bring skills by; what a policy demands."""

from __future__ import annotations

import sys

import pytest
from hermes_nb import Hermes
from hermes_nb.agent import runtime
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.skills import discovery
from hermes_nb.tools import installed

from tests.skills.support import put

PLUGIN = """
import pathlib
from dataclasses import replace
from hermes_nb.core.loop import Observer
from hermes_nb.skills.discovery import Root

seen = []

def timed(tools, *, source, guard, tell):
    def wrap(tool):
        async def run(context, arguments):
            seen.append((source, tool.name))
            return await tool.run(context, arguments)
        return replace(tool, run=run)
    return tools.map(wrap)

class Watch(Observer):
    def sink(self, agent, session="", parent="", *, behind=False):
        return lambda event: seen.append(type(event).__name__)

def watch(settings):
    return Watch()

def roots(policy):
    yield Root(pathlib.Path(__file__).parent / "skills", "shared")

def broken(*_, **__):
    raise ValueError("it broke")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with these entry points."""
    site = tmp_path / "site"
    about = site / "watching-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "watching_plugin.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: watching\nVersion: 1.0\n")

    def put_there(**groups):
        lines = [f"[hermes_nb.{g}]\nmine = watching_plugin:{what}\n" for g, what in groups.items()]
        (about / "entry_points.txt").write_text("".join(lines))
        monkeypatch.syspath_prepend(str(site))
        return site

    yield put_there
    sys.modules.pop("watching_plugin", None)


@pytest.fixture
def without(monkeypatch):
    """Return a function that leaves a module as it is where no package is installed."""
    return lambda module: monkeypatch.setattr(module, "plugins", lambda *_: [])


def asked(*steps, **options):
    with Hermes(ScriptedModel([*steps, "Done."]), **options) as hermes:
        return hermes.ask("go"), hermes.system_prompt


def test_a_wrapper_and_an_observer(install, tmp_path):
    install(tool_wrappers="timed", event_sinks="watch")
    asked(call("list_files"), cwd=tmp_path)
    seen = sys.modules["watching_plugin"].seen
    assert ("script", "list_files") in seen
    assert (seen[0], seen[-1]) == ("TurnStarted", "TurnEnded")


def test_a_wrapper_is_left_out_where_packages_bring_no_tools(install, tmp_path, administered):
    install(tool_wrappers="timed", event_sinks="watch")
    administered(tools={"added:*": "force-off"})
    asked(call("list_files"), cwd=tmp_path)
    assert ("script", "list_files") not in sys.modules["watching_plugin"].seen


def test_nothing_runs_without_a_wrapper_that_is_broken(install):
    install(tool_wrappers="broken")
    with pytest.raises(ConfigError, match="'mine' cannot be used: ValueError: it broke"):
        asked()


def test_a_turn_goes_on_without_what_only_looks_on(install, capsys):
    install(event_sinks="broken", skill_roots="broken")
    turn, _ = asked()
    assert turn.text == "Done."


def test_skills_of_a_package_are_external(install):
    site = install(skill_roots="roots")
    put(site / "skills", "weigh-things")
    model = ScriptedModel([call("skill_view", name="weigh-things"), "Done."])
    with Hermes(model) as hermes:
        turn = hermes.ask("go")
        assert "weigh-things" in hermes.system_prompt
    (read,) = [message.text for message in turn.messages if message.role == "tool"]
    assert "external skills" in read


def test_an_audit_that_nobody_can_write_stops_turns(without, administered):
    without(installed)
    administered(audit={"file": "/var/log/hermes/{user}.jsonl"})
    with pytest.raises(ConfigError, match="requires an audit"):
        asked()


def test_an_audit_that_is_demanded_later_stops_calls(without, administered, tmp_path):
    without(installed)
    with Hermes(ScriptedModel([call("write_file", path="a", content="b"), "No."]), cwd=tmp_path,
                approve="all") as hermes:  # fmt: skip
        assert hermes.session_id
        administered(audit={"file": "/var/log/hermes/{user}.jsonl"})
        turn = hermes.ask("go")
    (refused,) = [message.text for message in turn.messages if message.role == "tool"]
    assert "requires an audit" in refused and not (tmp_path / "a").exists()


@pytest.mark.parametrize("keys", [{"shared_skills": "/srv/skills"}, {"skills_key": "AAAA"}])
def test_signed_skills_that_nobody_can_check_stop_turns(without, administered, keys):
    without(discovery)
    administered(**keys)
    with pytest.raises(ConfigError, match="shares signed skills"):
        asked()


def test_spans_that_nobody_makes_are_named(without, monkeypatch):
    without(runtime)
    monkeypatch.setenv("HERMES_NB_OTEL_ENABLED", "true")
    with pytest.raises(ConfigError, match=r"otel\.enabled"):
        asked()
