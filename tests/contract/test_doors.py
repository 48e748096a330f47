"""The ways in from outside: commands, entry points, start-up files, plug-ins, the environment.

Files that users have are written here as today's version writes them, by the letter: the code that
wrote them may go, the files stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from concurrent.futures import Executor
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hermes_nb import Hermes
from hermes_nb.cli.main import main
from hermes_nb.models.scripted import ScriptedModel, call
from IPython.core.interactiveshell import InteractiveShell

from tests.kernels import Kernel, started
from tests.loopback import Loopback, stream, text_chunks, tool_chunks

STARTUP = """\
# Written by `jupyter hermes enable`; `jupyter hermes disable` removes it.
# The first cell with %hermes or %%hermes loads Hermes.
try:
    __import__("hermes_nb.notebook.lazy", fromlist=["watch"]).watch(get_ipython())
except ImportError:
    pass  # it is not installed for this interpreter
"""
"""`profile_default/startup/00-hermes-nb.py`"""
CONFIG = """\
{
  "MagicsManager": {
    "lazy_magics": {
      "hermes": "hermes_nb"
    }
  }
}
"""
"""`profile_default/ipython_config.json` and `ipython_kernel_config.json`"""
KERNELSPEC_ARGUMENT = "--ext=hermes_nb.notebook.lazy"

PLUGIN = """
from hermes_nb.context.compressor import Compressor
from hermes_nb.tools.schema import tool

made = []

@tool
def weigh(name: str) -> str:
    '''Weigh something.'''
    return f"{name} weighs 4.2 kg"

def engine(setup):
    made.append(type(setup).__name__)
    return Compressor(setup.model, window=setup.window)

class Notes:
    name = "scales"

    def __init__(self, home, settings):
        made.append(("memory", home.name, settings.get("depth")))

    def static_block(self): return "The scales are in the barn."
    def prefetch(self, query): return ""
    def on_memory_write(self, target, action, before, after): pass
    def before_compress(self, messages): pass
    def on_delegation(self, task, result): pass
    def session_ended(self, messages): pass
"""


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Commands and entry points


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("console_scripts", "jupyter-hermes", "hermes_nb.cli.main:main"),
        ("pytest11", "hermes_nb", "hermes_nb.pytest_plugin"),
        ("hermes_nb.executors", "processes", "hermes_nb.app.maps.executors:processes"),
    ],
)
def test_entry_points_that_others_name(group, name, value):
    (point,) = entry_points(group=group, name=name)
    assert point.value == value
    point.load()


def test_the_executor_of_processes_runs_things():
    (point,) = entry_points(group="hermes_nb.executors", name="processes")
    executor = point.load()()
    assert isinstance(executor, Executor)
    with executor:
        assert executor.submit(os.getpid).result(60) != os.getpid()


@pytest.mark.parametrize("words", [["-m", "hermes_nb.cli"], []], ids=["module", "script"])
def test_the_command_line_has_its_commands(words, tmp_path):
    start = words or [str(Path(sys.executable).with_name("jupyter-hermes"))]
    if not words and not Path(start[0]).exists():
        pytest.skip("the package is not installed beside this interpreter")
    done = run(*start, "--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("enable", "disable", "doctor", "sessions", "export", "run"):
        assert f" {command} " in done.stdout
    assert run(*start, "--version", cwd=tmp_path).stdout.startswith("hermes_nb ")


def test_run_takes_its_options_and_prints_events(tmp_path):
    with Loopback(stream(text_chunks("Forty-two."))) as server:
        done = run(
            *("-m", "hermes_nb.cli", "run", "What is it?", "--json", "--approve", "never"),
            *("--max-requests", "3", "--session", "mine", "--model", "a-model"),
            cwd=tmp_path,
            HERMES_NB_BASE_URL=server.url,
        )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "TurnStarted"
    assert kinds[-1] == "TurnEnded"
    assert {"MessageAdded", "TextDelta", "UsageReported"} <= set(kinds)
    assert events[-1]["reason"] == "answered"


# What `jupyter hermes enable` has written


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Write a profile as `enable` leaves it; `disable` takes it for the user's."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    folder = tmp_path / "ipython" / "profile_default"
    (folder / "startup").mkdir(parents=True)
    (folder / "startup" / "00-hermes-nb.py").write_text(STARTUP)
    for name in ("ipython_config.json", "ipython_kernel_config.json"):
        (folder / name).write_text(CONFIG)
    return folder


def test_enable_and_disable_know_the_files_of_today(profile, capsys):
    assert main(["enable", "--user"]) == 0
    assert capsys.readouterr().out.count("unchanged") >= 1
    assert STARTUP.splitlines()[0] in (profile / "startup" / "00-hermes-nb.py").read_text()
    assert main(["disable", "--user"]) == 0
    assert not profile.exists()


@pytest.fixture
def shell():
    """Yield a shell that knows nothing of Hermes."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    yield shell
    if "hermes_nb" in shell.extension_manager.loaded:
        shell.run_line_magic("unload_ext", "hermes_nb")
    InteractiveShell.clear_instance()


def test_the_startup_file_loads_hermes_in_time(shell, capsys):
    shell.run_cell(STARTUP)
    assert "hermes_nb" not in shell.extension_manager.loaded
    shell.run_cell("answer = %hermes help").raise_error()
    assert "hermes_nb" in shell.extension_manager.loaded
    assert "%hermes doctor" in capsys.readouterr().out


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.parametrize("how", ["startup", "kernelspec"])
def test_a_kernel_that_was_enabled_takes_the_first_cell(how, request, tmp_path, monkeypatch):
    arguments = [] if how == "startup" else [KERNELSPEC_ARGUMENT]
    if how == "startup":
        request.getfixturevalue("profile")
    with Loopback(stream(text_chunks("Forty-two."))) as server:
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        monkeypatch.setenv("HERMES_NB_MODEL", "a-model")
        manager, client = started(cwd=str(tmp_path), extra_arguments=arguments)
        try:
            assert "Forty-two." in Kernel(manager, client).run("%%hermes\nwhat is it?").markdown
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def test_users_configure_the_magics_by_their_class(shell):
    shell.run_cell("%load_ext hermes_nb").raise_error()
    shell.run_cell("%config HermesMagics.model = 'a-model'\n%config HermesMagics.approve = 'never'")
    magics = shell.magics_manager.registry["HermesMagics"]
    assert (magics.model, magics.approve) == ("a-model", "never")


# pytest


@pytest.mark.slow
def test_the_pytest_plugin_keeps_its_options_and_its_fixture(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "from hermes_nb import Hermes\n"
        "from hermes_nb.models.scripted import ScriptedModel\n"
        "def test_it(hermes_cassette):\n"
        "    model = hermes_cassette.model(ScriptedModel(['Forty-two.']))\n"
        "    with Hermes(model, home='home') as hermes:\n"
        "        assert hermes.ask('What is it?').text == 'Forty-two.'\n",
        encoding="utf-8",
    )
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    recorded = run(*options, cwd=tmp_path, HERMES_NB_CASSETTE="record")
    assert recorded.returncode == 0, recorded.stdout
    assert (tmp_path / "cassettes" / "test_it" / "test_it.jsonl").stat().st_size
    assert run(*options, "--hermes-replay", cwd=tmp_path).returncode == 0
    tape = tmp_path / "cassettes" / "test_it" / "test_it.jsonl"
    tape.write_text(tape.read_text("utf-8").replace('"usage":{', '"usage":{"cached":1,'), "utf-8")
    assert run(*options, cwd=tmp_path).returncode == 1
    assert run(*options, "--hermes-accept", cwd=tmp_path).returncode == 0
    said = run("-m", "hermes_nb.pytest_plugin", cwd=tmp_path).stdout.strip()
    assert Path(said).name == "nbval.cfg"
    assert "regex: " in Path(said).read_text(encoding="utf-8")


# Packages of others


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a package with a tool, a context engine and a memory provider."""
    site = tmp_path / "site"
    about = site / "scales-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "scales_plugin.py").write_text(PLUGIN, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scales\nVersion: 1.0\n")
    groups = {"tools": "weigh", "context_engines": "engine", "memory_providers": "Notes"}
    lines = [
        f"[hermes_nb.{group}]\nscales = scales_plugin:{what}\n" for group, what in groups.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("scales_plugin", None)


def test_packages_bring_tools_engines_and_memory(plugin, home, tmp_path):
    home.mkdir()
    (home / "config.yaml").write_text(
        "context:\n  engine: scales\nmemory:\n  provider: scales\n  scales:\n    depth: 3\n"
    )
    model = ScriptedModel([call("weigh", name="the pumpkin"), "4.2 kg."])
    with Hermes(model, cwd=tmp_path) as hermes:
        turn = hermes.ask("How heavy is the pumpkin?")
        assert "The scales are in the barn." in hermes.system_prompt
    assert turn.messages[2].text == "the pumpkin weighs 4.2 kg"
    import scales_plugin

    assert sorted(scales_plugin.made, key=str) == [("memory", home.name, 3), "Setup"]


# The environment


def test_home_model_key_and_address_come_from_the_environment(home, tmp_path, monkeypatch):
    with Loopback(stream(text_chunks("Hello."))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
        monkeypatch.setenv("HERMES_NB_MODEL", "a-model")
        with Hermes(cwd=tmp_path) as hermes:
            assert hermes.ask("Hi.").text == "Hello."
        (exchange,) = server.exchanges
    assert exchange.json["model"] == "a-model"
    headers = {name.lower(): value for name, value in exchange.headers.items()}
    assert headers["authorization"] == "Bearer sk-of-the-environment"
    assert (home / "notebook.db").is_file()


def test_a_key_of_the_file_is_not_sent_to_an_address_given_here(home, tmp_path):
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(
        "hermes_nb: {model: m, base_url: 'https://a.example/v1', api_key: sk-of-the-file}\n"
    )
    with Loopback(stream(text_chunks("Hello."))) as server:
        with Hermes(base_url=server.url, cwd=tmp_path) as hermes:
            assert hermes.ask("Hi.").text == "Hello."
        assert server.exchanges
        assert not any("sk-of-the-file" in str(each.headers) for each in server.exchanges)


@pytest.mark.parametrize(("approve", "written"), [("never", False), ("edits", True)])
def test_what_runs_unasked_comes_from_the_environment(approve, written, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_APPROVE", approve)
    with Hermes(
        ScriptedModel([call("write_file", path="a.txt", content="a"), "."]), cwd=tmp_path
    ) as it:
        it.ask("Write.")
    assert (tmp_path / "a.txt").exists() is written


def test_the_cassette_comes_from_the_environment(tmp_path, monkeypatch):
    tape = tmp_path / "tape.hermes.jsonl"
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(tape))
    replies = [stream(tool_chunks(("list_files", {}))), stream(text_chunks("Nothing is here."))]
    work = tmp_path / "work"
    work.mkdir()
    for mode in ("record", "replay"):
        monkeypatch.setenv("HERMES_NB_CASSETTE", mode)
        monkeypatch.setenv("HERMES_NB_MODEL", "a-model")
        with contextlib.ExitStack() as stack:
            if mode == "record":
                monkeypatch.setenv(
                    "HERMES_NB_BASE_URL", stack.enter_context(Loopback(*replies)).url
                )
            hermes = stack.enter_context(Hermes(cwd=work, home=tmp_path / mode))
            assert hermes.ask("What is here?").text == "Nothing is here.", mode
    assert tape.stat().st_size
