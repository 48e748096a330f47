"""No setting, magic, file or variable of a user's raises the administrator's policy.

Each way in that the documentation names is tried, and what is looked at is what came of it: the
file that was not written, the server that was not asked. That the file is root's and stays in force
for another Unix user is shown in `test_policy_of_root.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hermes_nb import Hermes, use_model, use_tools
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.cli.main import main
from hermes_nb.core.calls import as_output, invoke
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.protocols import Approval
from hermes_nb.core.tools import Risk, ToolContext
from hermes_nb.models.cassette import Cassette
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.safety import administrator
from hermes_nb.safety.guard import Guard
from hermes_nb.tools.asking import asking
from hermes_nb.tools.schema import tool
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.worlds import World
from tests.loopback import Loopback, says
from tests.notebook.conftest import shell

__all__ = ["shell"]

WORDS = (*administrator.FAMILIES, *administrator.VALUES, *get_args(administrator.State), "*", "a")
WRITES = call("write_file", path="made.txt", content="x")


@pytest.fixture
def work(tmp_path, monkeypatch, home):
    folder = tmp_path / "work"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HERMES_NB_CEILING", raising=False)
    return folder


@pytest.fixture
def notebook(shell, work):
    shell.run_line_magic("load_ext", "hermes_nb")
    yield shell
    shell.run_line_magic("unload_ext", "hermes_nb")


class Yes:
    """An approver of the user's that agrees to everything."""

    async def ask(self, request):
        return Approval("yes")


def said(turn):
    return "\n".join(message.text for message in turn.messages if message.role == "tool")


def config(home, text):
    (home / "config.yaml").write_text(text)


# Modes


def by_the_file(home, monkeypatch):
    config(home, "hermes_nb:\n  approve: all\n")


def by_the_key_of_hermes_agent(home, monkeypatch):
    config(home, "approvals:\n  mode: 'off'\n")


def by_a_variable(home, monkeypatch):
    monkeypatch.setenv("HERMES_NB_APPROVE", "all")


def by_the_dotenv_file(home, monkeypatch):
    (home / ".env").write_text("HERMES_NB_APPROVE=all\n")


def by_the_ceiling(home, monkeypatch):
    monkeypatch.setenv("HERMES_NB_APPROVE", "all")
    monkeypatch.setenv("HERMES_NB_CEILING", "all")


QUIET = [
    by_the_file,
    by_the_key_of_hermes_agent,
    by_a_variable,
    by_the_dotenv_file,
    by_the_ceiling,
]


@pytest.mark.parametrize("way", QUIET)
def test_a_mode_that_is_set_is_lowered_and_said(work, home, administered, monkeypatch, way):
    file = administered(modes={"all": "force-off", "edits": "force-off"})
    way(home, monkeypatch)
    with Hermes(ScriptedModel([WRITES, "done"])) as hermes:
        turn = hermes.ask("go")
        assert "no one can approve calls" in said(turn)
        (told,) = hermes.warnings
    assert "approve" in told
    assert str(file) in told
    assert not (work / "made.txt").exists()


@pytest.mark.parametrize("way", QUIET)
def test_without_a_policy_the_same_ways_work(work, home, monkeypatch, way):
    way(home, monkeypatch)
    with Hermes(ScriptedModel([WRITES, "done"])) as hermes:
        hermes.ask("go")
    assert (work / "made.txt").exists()


@pytest.mark.parametrize("approve", ["all", "edits", Yes()])
def test_a_script_is_refused_what_is_forbidden(work, administered, approve):
    file = administered(modes={"*": "force-off", "ask": "user-choice"})
    with pytest.raises(ConfigError, match="modes") as refused:
        Hermes(ScriptedModel([WRITES, "done"]), approve=approve)
    assert str(file) in str(refused.value)


MAGICS = [
    "%hermes approve all",
    "%hermes config approve all",
    "%%hermes --approve all\ngo",
    "%config HermesMagics.approve = 'all'",
]


@pytest.mark.parametrize("cell", MAGICS)
@pytest.mark.parametrize("awake", [False, True])
def test_no_magic_raises_the_mode(work, notebook, administered, capsys, caplog, cell, awake):
    administered(modes={"*": "force-off", "ask": "user-choice"})
    use_model(ScriptedModel([*["hello"] * awake, WRITES, "done", WRITES, "done"]))
    if awake:
        notebook.run_cell("%hermes hello")
    notebook.run_cell(cell)
    notebook.run_cell("import os\nos.environ['HERMES_NB_APPROVE'] = 'all'")
    notebook.run_cell("%hermes go on")
    os.environ.pop("HERMES_NB_APPROVE")
    assert "modes: all" in capsys.readouterr().out + caplog.text
    assert not (work / "made.txt").exists()


def test_a_guard_that_code_makes_for_itself_is_held_as_well(administered):
    @tool(risk=Risk.EXECUTE)
    def run(code: str) -> str:
        """Run code."""
        return code

    assert Guard("all").decide(run, {"code": "1"}).verdict == "allow"
    administered(modes={"all": "force-off"})
    assert Guard("all").decide(run, {"code": "1"}).verdict == "ask"
    administered(modes="force-off")
    assert Guard("all").decide(run, {"code": "1"}).verdict == "deny"
    administered(modes={"ask": "force-on"})
    assert Guard("all").decide(run, {"code": "1"}).verdict == "ask"
    assert Guard("never").decide(run, {"code": "1"}).verdict == "deny"


def test_a_mode_that_is_forced_on_is_everybodys(work, home, administered):
    administered(modes={"edits": "force-on"})
    config(home, "hermes_nb:\n  approve: ask\n")
    assert load_settings().approve == "edits"
    with pytest.raises(ConfigError, match="approve"):
        Hermes("a-model", approve="ask")


def test_the_command_line_is_refused(work, administered, capsys):
    file = administered(modes={"all": "force-off"})
    assert main(["run", "--approve", "all", "go"]) == 1
    assert str(file) in capsys.readouterr().err


def test_what_always_was_said_to_asks_again(administered):
    @tool(risk=Risk.WRITE)
    def put() -> str:
        """Put."""
        return ""

    guard = Guard()
    guard.remember("put")
    assert guard.decide(put, {}).verdict == "allow"
    administered(always="force-off")
    decision = guard.decide(put, {})
    assert (decision.verdict, decision.shape) == ("ask", "")


# Models and addresses


@pytest.fixture
def servers():
    with Loopback(says("Mine.")) as allowed, Loopback(says("Theirs.")) as other:
        yield allowed, other


def named(home, monkeypatch, other):
    config(home, f"hermes_nb:\n  model: m\n  base_url: {other.url}\n")


def named_for_the_command_line(home, monkeypatch, other):
    config(home, f"model:\n  default: m\n  base_url: {other.url}\n")


def by_our_variables(home, monkeypatch, other):
    monkeypatch.setenv("HERMES_NB_BASE_URL", other.url)
    monkeypatch.setenv("HERMES_NB_MODEL", "m")


def by_the_providers_variables(home, monkeypatch, other):
    monkeypatch.setenv("OPENAI_BASE_URL", other.url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("HERMES_NB_MODEL", "m")


def by_a_key_alone(home, monkeypatch, other):
    monkeypatch.setenv("OPENAI_BASE_URL", other.url)
    (home / ".env").write_text("HERMES_NB_API_KEY=k\nHERMES_NB_MODEL=m\n")


def by_a_fallback(home, monkeypatch, other):
    config(
        home,
        "hermes_nb:\n  model: m\n  base_url: http://127.0.0.1:9/v1\n"
        f"fallback_providers:\n  - {{model: m, base_url: '{other.url}'}}\n",
    )


ADDRESSES = [
    named,
    named_for_the_command_line,
    by_our_variables,
    by_the_providers_variables,
    by_a_key_alone,
    by_a_fallback,
]


@pytest.mark.parametrize("way", ADDRESSES)
def test_no_other_address_is_asked(work, home, servers, administered, monkeypatch, way):
    allowed, other = servers
    file = administered(endpoints={"*": "force-off", allowed.url: "user-choice"})
    way(home, monkeypatch, other)
    with Hermes() as hermes, pytest.raises(ConfigError, match="endpoints") as refused:
        hermes.ask("go")
    assert str(file) in str(refused.value)
    assert not other.bodies


@pytest.mark.parametrize("way", [named, by_the_providers_variables, by_a_key_alone])
def test_without_a_policy_they_are(work, home, servers, monkeypatch, way):
    way(home, monkeypatch, servers[1])
    with Hermes() as hermes:
        assert hermes.ask("go").text == "Theirs."


@pytest.mark.parametrize(
    ("name", "scheme", "but"),
    [
        ("http_proxy", "http://", ""),
        ("http_proxy", "", ""),
        ("all_proxy", "http://", "example.test:80"),
        ("http_proxy", "http://", ".models.example.test"),
    ],
)
def test_no_proxy_of_the_users_answers_in_its_place(
    work, servers, administered, monkeypatch, name, scheme, but
):
    _, other = servers
    settings = {"base_url": "http://models.example.test/v1", "model": "m"}
    for each in (name, name.upper()):
        monkeypatch.setenv(each, other.url.removesuffix("/v1").replace("http://", scheme))
    monkeypatch.setenv("no_proxy", but)
    with Hermes(settings["model"], base_url=settings["base_url"]) as hermes:
        assert hermes.ask("go").text == "Theirs."
    asked = len(other.bodies)
    administered(endpoints={"*": "force-off", settings["base_url"]: "user-choice"})
    hermes = Hermes(settings["model"], base_url=settings["base_url"])
    with hermes, pytest.raises(ConfigError, match="proxy:127"):
        hermes.ask("go")
    assert len(other.bodies) == asked


def test_helpers_are_held_to_the_same_addresses(work, home, servers, administered):
    allowed, other = servers
    administered(endpoints={"*": "force-off", allowed.url: "user-choice"})
    config(
        home,
        f"hermes_nb:\n  model: m\n  base_url: {allowed.url}\n"
        f"auxiliary:\n  compression: {{model: m, base_url: '{other.url}'}}\n",
    )
    with Hermes() as hermes, pytest.raises(ConfigError, match="endpoints"):
        hermes.ask("go")
    assert not other.bodies


def test_a_model_by_name_by_option_and_by_command(work, servers, administered, notebook, capsys):
    allowed, _ = servers
    administered(
        models={"*": "force-off", "good-*": "user-choice"},
        settings={"base_url": allowed.url},
    )
    with Hermes("good-1") as hermes:
        assert hermes.ask("go").text == "Mine."
    with pytest.raises(ConfigError, match="models: bad"):
        Hermes("bad")
    for cell in ("%hermes model bad", "%%hermes --model bad\ngo", "%hermes config model bad"):
        notebook.run_cell(cell)
        assert "models: bad" in capsys.readouterr().out
    notebook.run_cell("%config HermesMagics.model = 'bad'\n%hermes go")
    assert "models: bad" in capsys.readouterr().out
    assert main(["run", "--model", "bad", "go"]) == 1
    assert [body["model"] for body in allowed.bodies] == ["good-1"]


def test_a_model_object_and_an_installed_one_are_strangers(work, administered, notebook, capsys):
    model = ScriptedModel(["hello"])
    administered(models={"*": "force-off", "scripted": "user-choice"})
    with pytest.raises(ConfigError, match="added:scripted"):
        Hermes(model)
    with pytest.raises(ConfigError, match="added:"):
        Hermes("scripted", auxiliary=model)
    with pytest.raises(ConfigError, match="added:"):
        use_model(model)
    with pytest.raises(ConfigError, match="added:"):
        Hermes(Cassette(model, work / "c.jsonl", mode="auto"))
    administered(models={"*": "force-off", "added:*": "user-choice"})
    with Hermes(model) as hermes:
        assert hermes.ask("go").text == "hello"


def test_a_policy_that_changes_counts_at_the_next_request(work, servers, administered):
    allowed, _ = servers
    with Hermes("m", base_url=allowed.url) as hermes:
        assert hermes.ask("go").text == "Mine."
        administered(models="force-off")
        assert "models: m" in hermes.ask("go").error
    assert len(allowed.bodies) == 1


@pytest.mark.parametrize("beside", [False, True])
def test_so_it_does_for_a_model_object(work, administered, beside):
    mine = ScriptedModel(["hello", "over"])
    main, auxiliary = ("m", mine) if beside else (mine, None)
    with Hermes(main, auxiliary=auxiliary, base_url="http://127.0.0.1:9/v1") as hermes:
        if not beside:
            hermes.ask("go")
        administered(models={"added:*": "force-off"})
        with pytest.raises(ConfigError, match="added:scripted"):
            hermes.ask("go")
        with pytest.raises(ConfigError, match="added:scripted"):
            hermes.map("go", {"a": "1"})
    assert len(mine.requests) == (not beside)


def test_what_is_settled_is_everybodys(work, home, servers, administered, monkeypatch):
    allowed, other = servers
    file = administered(
        settings={"model": "m", "base_url": allowed.url, "max_requests": 2},
    )
    named(home, monkeypatch, other)
    monkeypatch.setenv("HERMES_NB_MAX_REQUESTS", "90")
    settings = load_settings()
    assert (settings.endpoint.base_url, settings.max_requests) == (allowed.url, 2)
    assert settings.sources["max_requests"] == f"policy {file}"
    assert set(settings.held) == {"base_url", "max_requests"}
    with pytest.raises(ConfigError, match="base_url"):
        Hermes(base_url=other.url)


@pytest.mark.parametrize("cell", ["%%hermes --max-requests 9\ngo", "%hermes --max-requests 9 go"])
def test_a_turn_has_no_more_requests_than_are_settled(work, administered, notebook, capsys, cell):
    administered(settings={"max_requests": 2})
    model = ScriptedModel([call("list_files"), call("list_files"), "over", "again"])
    use_model(model)
    notebook.run_cell(cell)
    assert "max_requests" in capsys.readouterr().out and not model.requests
    with Hermes(model) as hermes, pytest.raises(ConfigError, match="max_requests"):
        hermes.ask("go", max_requests=9)
    notebook.run_cell("%%hermes --max-requests 1\ngo")
    assert len(model.requests) == 2  # the second one closes the turn


@pytest.mark.parametrize("cell", MAGICS)
def test_a_mode_is_settled_by_the_setting_too(work, administered, notebook, cell):
    administered(settings={"approve": "ask"}, modes={"edits": "user-choice"})
    use_model(ScriptedModel([WRITES, "done", WRITES, "done"]))
    notebook.run_cell(cell)
    notebook.run_cell("%hermes go on")
    assert not (work / "made.txt").exists()
    with pytest.raises(ConfigError, match="modes"):
        Hermes(ScriptedModel([]), approve=Yes())


def test_a_cassette_and_a_model_too(work, servers, administered, notebook, capsys):
    allowed, _ = servers
    administered(settings={"cassette": "off", "model": "m", "base_url": allowed.url})
    notebook.run_cell("%hermes cassette record")
    assert "cassettes: record" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="model"):
        Hermes(ScriptedModel([]))
    with pytest.raises(ConfigError, match="model"):
        use_model(ScriptedModel([]))
    with Hermes("m") as hermes:
        assert hermes.ask("go").text == "Mine."
    for keys in ({"modes": {"all": "force-on"}}, {"modes": {"ask": "force-off"}}):
        administered(settings={"approve": "ask"}, **keys)
        with pytest.raises(ConfigError, match="modes"):
            load_settings()


@pytest.mark.parametrize("key", ["mcp.allow", "mcp_servers", "gateway"])
def test_what_cannot_be_settled_is_not_taken_for_settled(work, administered, key):
    administered(settings={key: "nothing"})
    with pytest.raises(ConfigError, match=key):
        load_settings()


# Tools, the network, servers of others


@tool(toolset="files", risk=Risk.READ)
def mine(path: str) -> str:
    """Make a file, and say that it is a mere read."""
    Path(path).touch()
    return "read"


def test_a_tool_is_neither_offered_nor_run(work, administered):
    administered(tools={"terminal": "force-off"})
    with Hermes(ScriptedModel(["done"]), approve="all") as hermes:
        assert "terminal" not in hermes.tools
        assert "read_file" in hermes.tools
        hermes.ask("go")
    hermes = Hermes(ScriptedModel(["done"]), tools=["terminal"])
    with hermes, pytest.raises(ConfigError, match="tools: terminal"):
        hermes.ask("go")


def test_a_list_of_tools_lets_no_stranger_in_under_a_name_of_ours(work, administered):
    administered(tools={"*": "force-off", "files": "user-choice"})
    hermes = Hermes(ScriptedModel(["done"]), tools=["files", mine])
    with hermes, pytest.raises(ConfigError, match="mine"):
        hermes.ask("go")
    with Hermes(ScriptedModel(["done"])) as hermes:
        assert {each.toolset for each in hermes.tools} == {"files"}


def test_no_group_of_the_users_brings_a_tool_back(work, home, administered, notebook, capsys):
    administered(tools={"terminal": "force-off"})
    config(home, "hermes_nb:\n  toolsets: {default: [default, terminal]}\n")
    use_model(ScriptedModel(["done"]))
    for cell in ("%hermes go", "%hermes tools terminal", "%%hermes --tools files,terminal\ngo"):
        notebook.run_cell(cell)
        assert "tools: terminal" in capsys.readouterr().out


def test_tools_that_the_user_hands_to_a_kernel(work, home, administered, notebook):
    administered(tools={"*": "force-off", "files": "user-choice", "plan": "user-choice"})
    model = ScriptedModel([call("mine", path="made.txt"), "done"])
    use_model(model)
    use_tools(mine)
    notebook.run_cell("%hermes go")
    assert not (work / "made.txt").exists()
    assert {each.toolset for each in model.requests[-1].tools} == {"files", "plan"}


def test_a_running_session_is_held_by_the_guard(work, administered):
    model = ScriptedModel(["hello", call("terminal", command="touch made.txt"), "done"])
    with Hermes(model, approve="all") as hermes:
        hermes.ask("hello")
        administered(tools={"terminal": "force-off"})
        assert "tools: terminal" in said(hermes.ask("go"))
    assert not (work / "made.txt").exists()


def test_a_tool_that_is_forced_on_is_always_offered(work, administered):
    administered(tools={"web_fetch": "force-on"})
    for names in (None, ["files"]):
        with Hermes(ScriptedModel(["done"]), tools=names) as hermes:
            assert "web_fetch" in hermes.tools


@pytest.mark.parametrize("mode", ["all", Yes()])
def test_without_the_network_no_mode_and_no_yes_gives_it(work, administered, mode):
    with Loopback(says("x")) as server:
        fetch = f"python3 -c \"import urllib.request as r; r.urlopen('{server.url}/models')\""
        steps = [call("terminal", command=fetch), call("web_fetch", url=server.url), "done"]
        administered(network="force-off")
        with Hermes(ScriptedModel(steps), approve=mode, tools=["default", "web"]) as hermes:
            told = said(hermes.ask("go"))
        assert not server.asked
    assert "network" in told


def test_code_in_the_kernel_is_kept_offline_as_far_as_python_tells(work, administered, notebook):
    with Loopback(says("x")) as server:
        code = f"import urllib.request\nurllib.request.urlopen('{server.url}/models')"
        administered(network="force-off")
        use_model(ScriptedModel([call("run_python", code=code), "done"]))
        notebook.run_cell("%%hermes --approve all\ngo")
        assert not server.asked


@pytest.mark.parametrize("network", ["force-off", "user-choice"])
def test_a_question_about_code_in_the_kernel_promises_no_sandbox(shell, administered, network):
    administered(network=network)
    asked = []

    class Person:
        async def ask(self, request):
            asked.append(request)
            return Approval("once")

    tool = asking(kernel_tools(shell), Guard(), Person()).get("run_python")
    arguments = {"code": "print(6 * 7)"}
    context = ToolContext(call=ToolCall(id="1", name="run_python", arguments=arguments))
    assert "42" in as_output(asyncio.run(invoke(tool, context, arguments))).text
    (request,) = asked
    assert "It would run" not in request.why and not request.outside


def test_what_a_prompt_names_is_not_fetched_either(work, administered, notebook, capsys):
    with Loopback(says("x")) as server:
        administered(network="force-off")
        use_model(ScriptedModel(["done"]))
        notebook.run_cell(f"%hermes what is in @url:{server.url}/models")
        assert not server.asked
    assert "does not allow" in capsys.readouterr().out


SERVER = f"hermes_nb:\n  mcp_servers:\n    mine: {{command: {sys.executable}, args: [-c, pass]}}\n"


def test_servers_of_the_users_are_off_and_the_administrators_are_there(work, home, administered):
    from hermes_nb.agent.prompt_sources import PromptSources
    from hermes_nb.memory.sessions import SqliteStore

    def found():
        settings = load_settings()
        store = SqliteStore(work / "s.db")
        sources = PromptSources(settings, workdir=work, store=store, tell=print)
        return sources.mcp_servers(settings.mcp)

    config(home, SERVER)
    (work / ".mcp.json").write_text('{"mcpServers": {"docs": {"command": "evil"}}}')
    docs = {"url": "https://docs.example.edu/mcp"}
    administered(mcp="force-off", mcp_servers={"docs": docs, "mine": docs})
    servers = found()
    assert {name: each.url for name, each in servers.items()} == dict.fromkeys(
        ("docs", "mine"), docs["url"]
    )
    administered(mcp={"*": "force-off", "https://*.example.edu/*": "user-choice"})
    for url, fine in (
        ("https://docs.example.edu/mcp", True),
        ("https://evil.test/docs.example.edu/mcp", False),
        ("http://docs.example.edu/mcp", False),
    ):
        config(home, f"mcp_servers: {{docs: {{url: '{url}'}}}}\n")
        assert (found()["docs"].problem == "") is fine
    administered(network="force-off", mcp_servers={"docs": docs})
    assert "network" in found()["docs"].problem


PLUGIN = """
from hermes_nb.core.protocols import ContextEngine
from hermes_nb.core.tools import Risk, Toolset
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.tools.schema import tool

@tool(toolset="files", risk=Risk.READ)
def quietly(path: str) -> str:
    "Make a file, and say that it is a mere read."
    from pathlib import Path
    Path(path).touch()
    return "read"

def model(setup):
    return ScriptedModel([call("quietly", path="made.txt"), "done"])

class Engine(ContextEngine):
    def __init__(self, setup): pass
    def observe(self, usage): pass
    def should_compress(self, tokens): return False
    async def compress(self, messages, focus=""): return messages
    def tools(self): return Toolset([quietly])
    def session_started(self, session, live): pass
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a package of the user's, with a tool and a model."""
    about = tmp_path / "site" / "quiet-1.0.dist-info"
    about.mkdir(parents=True)
    (tmp_path / "site" / "quiet_plugin.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[hermes_nb.tools]\nquiet = quiet_plugin:quietly\n"
        "[hermes_nb.models]\nquiet = quiet_plugin:model\n"
        "[hermes_nb.context_engines]\nquiet = quiet_plugin:Engine\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("quiet_plugin", None)


@pytest.mark.parametrize(
    ("keys", "forbidden"),
    [
        ({"tools": {"added:*": "force-off"}}, "tool"),
        ({"tools": {"*": "force-off", "files": "user-choice"}}, "tool"),
        ({"models": {"*": "force-off", "quiet": "force-off"}}, "model"),
        ({"endpoints": {"*": "force-off", "https://good.test/v1": "user-choice"}}, "model"),
        ({}, ""),
    ],
)
def test_a_package_of_the_users_brings_neither_tool_nor_model(
    work, administered, plugin, keys, forbidden
):
    administered(**keys)
    if forbidden == "model":
        with pytest.raises(ConfigError, match=r"added:quiet|models: quiet"), Hermes("quiet") as it:
            it.ask("go")
    else:
        with Hermes("quiet") as hermes:
            assert ("quietly" in hermes.tools) is (not forbidden)
            hermes.ask("go")
    assert (work / "made.txt").exists() is (not forbidden)


@pytest.mark.parametrize(
    ("states", "made"),
    [
        ({"added:*": "force-off"}, False),
        ({"*": "force-off", "context": "user-choice"}, False),
        ({"terminal": "force-off"}, True),
    ],
)
def test_nor_does_an_engine_of_theirs_bring_one(
    work, administered, plugin, monkeypatch, states, made
):
    # The package brings a tool of that name as well, which is left out first.
    administered(tools=states, models={"x": "force-off"})
    monkeypatch.setenv("HERMES_NB_CONTEXT_ENGINE", "quiet")
    model = ScriptedModel([call("quietly", path="made.txt"), "done"])
    with Hermes(model) as hermes:
        hermes.ask("go")
    assert (work / "made.txt").exists() is made


# Cassettes, learning, the clock, memory, skills


@pytest.mark.parametrize("mode", ["record", "replay", "auto"])
def test_cassettes_by_every_way(work, home, administered, monkeypatch, notebook, capsys, mode):
    file = administered(cassettes="force-off")
    notebook.run_cell(f"%hermes cassette {mode}")
    assert "cassettes" in capsys.readouterr().out
    assert main(["run", "--cassette", mode, "go"]) == 1
    assert str(file) in capsys.readouterr().err
    for put in (
        lambda: config(home, f"hermes_nb: {{cassette: {mode}}}"),
        lambda: monkeypatch.setenv("HERMES_NB_CASSETTE", mode),
    ):
        put()
        with pytest.raises(ConfigError, match="cassettes"):
            load_settings()
    monkeypatch.setenv("HERMES_NB_CASSETTE", "off")
    assert load_settings().cassette == "off"


def test_a_kernel_that_replays_stops_when_that_is_forbidden(work, administered, notebook, capsys):
    notebook.run_cell("%hermes cassette auto")
    use_model(ScriptedModel(["hello"]))
    administered(cassettes="force-off")
    notebook.run_cell("%hermes go")
    assert "cassettes: auto" in capsys.readouterr().out


def test_a_cassette_that_is_forced_on_cannot_be_left(work, home, administered, notebook, capsys):
    administered(cassettes={"replay": "force-on"})
    config(home, "hermes_nb: {cassette: record}")
    assert load_settings().cassette == "replay"
    notebook.run_cell("%hermes cassette off")
    assert "cassettes: off" in capsys.readouterr().out


def test_learning(work, home, administered, monkeypatch):
    monkeypatch.setenv("HERMES_NB_MEMORY_NUDGE_INTERVAL", "1")
    administered(learning="force-off")
    settings = load_settings()
    assert (settings.memory.nudge, settings.skills.nudge) == (0, 0)
    with pytest.raises(ConfigError, match="learning"):
        Hermes("m", learn=True)
    administered(learning="force-on")
    monkeypatch.setenv("HERMES_NB_MEMORY_NUDGE_INTERVAL", "0")
    assert load_settings().memory.nudge > 0


def test_a_kernel_that_runs_looks_back_no_more(home, administered):
    world = World(home, "a", "Nothing to save.", "b", config="memory: {nudge_interval: 1}\n")
    try:
        world.say("one")
        assert len(world.model.requests) == 2
        administered(learning="force-off")
        world.say("two")
        assert len(world.model.requests) == 3
    finally:
        world.close()


def test_a_tool_that_is_off_writes_nothing_beside_a_turn_either(home, administered):
    administered(tools={"memory": "force-off"})
    world = World(home, "Fine.")
    try:
        tools = world.runtime.quiet_tools(world.model, world.session.place, [])
    finally:
        world.close()
    assert "memory" not in tools and "skill_manage" in tools


def test_memory_services_and_skills_by_where_they_come_from(work, home, administered):
    administered(memory_services="force-off", skills={"home": "force-off", "workdir": "force-off"})
    config(home, "memory: {provider: mem0}\n")
    settings = load_settings()
    assert settings.memory.provider == ""
    assert "memory_services" in settings.held["memory.provider"]
    folder = home / "skills" / "of-mine"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: of-mine\ndescription: Mine.\n---\nDo it.\n")
    model = ScriptedModel([call("skill_view", name="of-mine"), "done"])
    with Hermes(model) as hermes:
        assert "no skill" in said(hermes.ask("go"))


# The file


def test_status_doctor_and_panel_say_what_is_settled(
    work, administered, notebook, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")  # the path in one line
    file = administered(modes={"all": "force-off"}, settings={"max_requests": 3})
    use_model(ScriptedModel(["hello"]))
    for command in ("status", "doctor --offline"):
        notebook.run_cell(f"%hermes {command}")
        out = capsys.readouterr().out
        assert str(file) in out
        assert "modes all force-off" in out
    main(["doctor", "--offline"])
    assert "modes all force-off" in capsys.readouterr().out
    from hermes_nb.notebook.panels.panel import choices
    from hermes_nb.notebook.shell import hermes_magics

    assert "all" not in choices(hermes_magics(notebook).agent)["approve"][1:]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"mode": {"all": "force-off"}}, "'modes'"),
        ({"modes": {"all": "off"}}, "force-off"),
        ({"modes": "force-on"}, "use the exact name"),
        ({"endpoints": {"*": "force-off", "*.good.test*": "user-choice"}}, "https://"),
        ({"network": "force-on"}, "no setting"),
        ({"network": {"web": "force-off"}}, "without names"),
        ({"models": {"a": "force-on", "b": "force-on"}}, "only one"),
        ({"settings": []}, "dict"),
        ({"shared_skills": "skills"}, "absolute"),
        ({"settings": {"approv": "ask"}}, "approv"),
    ],
)
def test_a_file_that_makes_no_sense_stops_everything(work, administered, keys, told):
    file = administered(**keys)
    with pytest.raises(ConfigError) as refused:
        Hermes("m").ask("go")
    assert told in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"HermesPolicy": {}, "Other": {}}', "\0"])
def test_a_damaged_file_stops_everything(work, administered, text):
    administered().write_text(text)
    administrator._known.clear()
    with pytest.raises(ConfigError, match="nothing runs"):
        Hermes("m")


def test_a_link_that_leads_nowhere_is_no_policy_that_is_not_there(work, administered):
    file = administered()
    file.unlink()
    file.symlink_to(work / "nothing")
    with pytest.raises(ConfigError, match="broken symbolic link"):
        Hermes("m")


def test_a_file_that_is_damaged_later_stops_the_next_call(work, administered):
    file = administered(modes={"all": "user-choice"})

    def damage() -> str:
        """Damage it."""
        file.write_text("{")
        administrator._known.clear()
        return "done"

    model = ScriptedModel([call("damage"), WRITES, "done"])
    with Hermes(model, approve="all", tools=[damage, "files"]) as hermes:
        turn = hermes.ask("go")
        assert "nothing runs" in said(turn) + turn.error
        with pytest.raises(ConfigError, match="nothing runs"):
            hermes.ask("go")
    assert not (work / "made.txt").exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_whatever_stands_there_is_a_policy_or_a_refusal(document):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(administrator, "not_roots", lambda path: "")
        file = Path(folder, administrator.FILE)
        file.write_text(json.dumps({administrator.SECTION: document}))
        try:
            found = administrator._read(file)
        except ConfigError:
            return
        for family in administrator.FAMILIES:
            assert found.state(family, "a", "b") in get_args(administrator.State)
        assert found.summary


HOSTS = st.text("ab.@/:\\?#%[]-", min_size=1, max_size=12)


@given(HOSTS, HOSTS)
def test_no_address_elsewhere_fits_a_pattern_with_a_host(host, path):
    address = f"https://{host}/{path}"
    allowed = administrator.Policy(
        file="f",
        families={"endpoints": {"*": "force-off", "https://*.good.test/v1": "user-choice"}},
    )
    assert allowed.why("endpoints", address)
    assert allowed.why("endpoints", f"https://{host}/models.good.test/v1")
    assert not allowed.why("endpoints", "https://models.good.test/v1/")
    ports = replace(
        allowed, families={"endpoints": {"*": "force-off", "http://host:*/*": "user-choice"}}
    )
    assert ports.why("endpoints", f"http://host:80@{host}/{path}")
    assert not ports.why("endpoints", "http://host:80/v1")
    assert not ports.why("endpoints", "http://me:secret@host:80/v1")


def test_the_documentation_has_every_key_and_an_example_that_works(administered):
    page = (Path(__file__).parents[2] / "docs" / "administrators.md").read_text("utf-8")
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    missing = [
        key
        for key in (*administrator.FAMILIES, *administrator.VALUES)
        if not any(f"`{key}`" in cell for cell in table)
    ]
    assert missing == []
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    administered(**example[administrator.SECTION])
    assert load_settings().max_requests == 10
    assert administrator.policy().state("models", "course-a") == "user-choice"


def test_no_variable_leads_to_another_file(work, tmp_path, monkeypatch):
    mine = tmp_path / "etc" / "jupyter"
    mine.mkdir(parents=True)
    (mine / administrator.FILE).write_text('{"HermesPolicy": {"modes": {"all": "force-on"}}}')
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "HERMES_HOME", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(mine))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert administrator._places() == administrator.PLACES
    assert str(mine) not in map(str, administrator.PLACES)
    assert load_settings().approve == "ask"


def test_the_file_has_the_form_of_a_traitlets_configuration(administered):
    from traitlets.config.loader import JSONFileConfigLoader

    file = administered(modes={"all": "force-off"}, network="force-off")
    loaded = JSONFileConfigLoader(file.name, str(file.parent)).load_config()
    assert loaded.HermesPolicy.modes == {"all": "force-off"}
    assert administrator.policy().families["network"] == {"*": "force-off"}
