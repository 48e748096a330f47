"""`%hermes mcp`, a project's servers, and what a prompt names of them, as a user types it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from types import SimpleNamespace

import pytest
import yaml
from hermes_nb.agent.settings.files import write_server
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import one_line
from hermes_nb.models.scripted import call
from hermes_nb.notebook.commands.table import Completions
from hermes_nb.notebook.magics import HermesMagics
from hermes_nb.notebook.panels.style import mcp_servers
from hermes_nb.tools.mcp_tools import FILE
from hermes_nb.tools.mcp_wire import specs
from hypothesis import given
from hypothesis import strategies as st

from tests.notebook.conftest import desk, shell
from tests.patience import until
from tests.tools.mcp.conftest import SERVER, STDIO, written

__all__ = ["desk", "shell"]


def names(desk, request=-1):
    return [t.name for t in desk.model.requests[request].tools if t.toolset == "mcp"]


def completed(desk, typed):
    assert until(lambda: all(desk.agent.mcp.references.values()))
    magics = SimpleNamespace(shell=desk.shell, awake=desk.agent, hermes=HermesMagics.hermes)
    assert Completions(magics).offered("%hermes mcp logs ")[1] == ["t"]
    return Completions(magics).found(f"%%hermes\nsee {typed}")[1]


def test_a_server_from_its_first_word_to_its_last(desk, home, capsys):
    """One story, since each start of a server takes seconds."""
    home.mkdir()
    (home / "config.yaml").write_text("# mine\nmodel:\n  default: m  # the best\n")
    desk.plays("hello", "hello again")
    assert "No MCP servers yet" in desk("mcp")
    desk.ask()
    told = desk(f"mcp add t TOKEN=abc {shlex.quote(sys.executable)} {shlex.quote(SERVER)} stdio")
    assert "is being started" in told
    written = (home / "config.yaml").read_text()
    assert "# mine" in written and "# the best" in written
    assert "picture" in desk("mcp test t")
    assert "ready" in desk("mcp") and "abc" not in desk("mcp list")
    desk.ask()
    assert names(desk) == []  # this session began without
    desk.agent.new()
    desk.plays(call("mcp__t__add", a=1, b=2), "three", "milk", "tea")
    desk.agent.configure("approve", "all")
    desk.ask("what is 1 + 2?")
    assert "mcp__t__add" in names(desk)
    desk.ask("what is in @t:notes://today ?")
    assert completed(desk, "@t:") == ["@t:notes://today", "@t:prompt/summarise"]
    parts = desk.model.requests[-1].messages[-1].parts
    assert "Buy milk." in parts[1].text and parts[1].origin == "outside"
    assert "Attached: @t:notes://today" in capsys.readouterr().out
    desk('mcp prompt t:summarise topic="green tea"')
    part = desk.model.requests[-1].messages[-1].parts[1]
    assert "Summarise what is known of green tea." in part.text and part.origin == "outside"
    assert "t:summarise topic=…" in desk("mcp prompt t")
    shown = mcp_servers(desk.agent.mcp.servers.connections.values())
    assert "1 of 1 ready" in shown and "8 tools" in shown
    with pytest.raises(ConfigError, match="no MCP server 'x'"):
        desk("mcp logs x")
    assert "t" in desk("mcp remove t") and "No MCP servers" in desk("mcp")
    assert yaml.safe_load((home / "config.yaml").read_text())["model"] == {"default": "m"}
    desk.agent.close()


def test_code_that_an_agent_runs_adds_no_server(desk, home):
    with desk.agent.permission.held(), pytest.raises(ConfigError, match="code that an agent runs"):
        desk("mcp add t python server.py")
    assert not (home / "config.yaml").exists()


def test_servers_of_a_project_wait_for_trust(desk, tmp_path, monkeypatch, capsys):
    work = tmp_path / "project"
    work.mkdir()
    monkeypatch.chdir(work)
    ran = work / "ran"
    script = f"open({str(ran)!r}, 'w').close(); import sys; sys.stdin.read()"
    server = {"command": sys.executable, "args": ["-c", script]}
    (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": server}}))
    desk.plays("one", "two")
    desk.ask()
    assert ".mcp.json here names MCP servers (theirs)" in capsys.readouterr().out
    assert names(desk) == [] and "No MCP servers" in desk("mcp") and not ran.exists()
    assert ".mcp.json" in desk("trust")
    assert "trusted" in desk("trust .mcp.json")
    assert "theirs" in desk("mcp list")
    assert until(ran.exists)
    desk.agent.new()
    desk.ask()
    assert names(desk) == ["mcp_search", "mcp_call", "mcp_resource"]
    desk.agent.close()


def test_what_servers_had_last_time_is_completed(desk, home, known):
    """Before any of them has answered in this kernel."""
    home.mkdir()
    shutil.copy(known, home / FILE)
    silent = {**STDIO, "command": "no-such-program"}
    written(home, t=STDIO, silent=silent)
    facts = json.loads(known.read_text())
    assert [each["references"] for each in facts["servers"].values()] == [
        ["notes://today", "prompt/summarise"]
    ]
    desk.plays("hello")
    desk.ask()
    assert desk.agent.mcp.references == {"t": ["notes://today", "prompt/summarise"], "silent": []}
    desk.agent.close()


def test_what_is_wrong_with_a_server_is_said():
    environ = {"KEY": "secret"}
    given = {
        "fine": {"command": "x", "args": ["${KEY}", "${OTHER:-else}"], "timeout": 5},
        "nothing": {},
        "both": {"command": "x", "url": "https://a"},
        "unset": {"url": "https://a", "headers": {"X": "${MISSING}"}},
        "no__name": {"command": "x"},
        "off": {"command": "x", "enabled": False},
        "text": "x",
        "ftp": {"url": "ftp://a"},
    }
    found = specs(given, environ, "config.yaml")
    assert found["fine"].args == ("secret", "else") and found["fine"].timeout == 5
    assert {name for name, spec in found.items() if spec.problem} == set(given) - {"fine"}
    assert "MISSING is not set" in found["unset"].problem
    assert "secret" not in repr(found["unset"])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values, st.dictionaries(st.sampled_from("abcd"), json_values))
def test_any_configuration_of_servers_is_read(one, several):
    specs(one, {}, "")
    for spec in specs({"x": several, "y": one}, {}, "").values():
        assert spec.target is not None and len(spec.key) == 16


keys = st.sampled_from(["model", "approve", "mcp_servers", "memory"])
words = st.text("abc xyz#:'\"-é", max_size=12).map(one_line)


@given(
    st.dictionaries(keys, words | st.dictionaries(keys, words)),
    st.none() | st.dictionaries(st.sampled_from(["approve", "window"]), words),
    st.booleans(),
)
def test_a_server_is_written_and_the_rest_stays(tmp_path_factory, shared, own, comments):
    home = tmp_path_factory.mktemp("home")
    document = dict(shared) if own is None else {"hermes_nb": own, **shared}
    lines = yaml.safe_dump(document, sort_keys=False, default_flow_style=False).splitlines()
    notes = [f"# about {number}\n" if comments else "" for number, _ in enumerate(lines)]
    text = "".join(f"{line}\n{note}" for line, note in zip(lines, notes, strict=True))
    file = home / "config.yaml"
    file.write_text(text)
    try:
        assert (yaml.safe_load(text) or {}) == document
    except yaml.YAMLError:
        return  # a comment fell into a text of several lines
    try:
        write_server(home, "s", {"command": "x"})
    except ConfigError:
        assert file.read_text() == text
        return
    now = yaml.safe_load(file.read_text())
    assert now == {**document, "hermes_nb": {**(own or {}), "mcp_servers": {"s": {"command": "x"}}}}
    write_server(home, "t", {"url": "http://x"})
    write_server(home, "s", None)
    now = yaml.safe_load(file.read_text())
    assert now["hermes_nb"]["mcp_servers"] == {"t": {"url": "http://x"}}
    assert all(note in file.read_text() for note in notes)
