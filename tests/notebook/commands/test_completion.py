"""TAB behind the magics: in this process, in a real kernel, and gone after unload."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.notebook.commands.table import Completions, commands
from hermes_nb.notebook.magics import load, unload
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within


@pytest.fixture
def complete(shell, tmp_path, monkeypatch):
    from IPython.core.completer import provisionalcompleter

    monkeypatch.chdir(tmp_path)
    load(shell)

    def complete(text):
        """Return what the line may become, as whole lines."""
        with provisionalcompleter():
            found = list(shell.Completer.completions(text, len(text)))
        return [text[: each.start] + each.text + text[each.end :] for each in found]

    yield complete
    unload(shell)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("%hermes stat", ["%hermes status"]),
        ("x = %hermes stat", ["x = %hermes status"]),
        ("%hermes skills sh", ["%hermes skills show"]),
        ("%hermes panel me", ["%hermes panel memory"]),
        ("%hermes cassette re", ["%hermes cassette record", "%hermes cassette replay"]),
        ("%hermes approve e", ["%hermes approve edits"]),
        ("%hermes help cass", ["%hermes help cassette"]),
        ("%%hermes --appr", ["%%hermes --approve"]),
        ("%%hermes --approve n", ["%%hermes --approve never"]),
        ("%%hermes --approve=n", ["%%hermes --approve=never"]),
        ("%%hermes --quiet --dr", ["%%hermes --quiet --dry-run"]),
        ("for x in y:\n    %hermes --new --no", ["for x in y:\n    %hermes --new --no-context"]),
    ],
)
def test_before_anything_was_used(complete, typed, expected):
    assert complete(typed) == expected


def test_all_of_them_behind_a_blank(complete):
    assert {f"%hermes {name}" for name in commands()} <= set(complete("%hermes "))
    assert {"%%hermes --image", "%%hermes --into"} <= set(complete("%%hermes --"))


def test_names_of_an_agent_in_use(complete, shell):
    agent = shell.magics_manager.registry["HermesMagics"].agent
    agent.use(ScriptedModel(["one", "two"]))
    asyncio.run(agent.ask("Look at the penguins"))
    ident = agent.session.id
    for typed, meant in (
        ("%hermes resume Loo", "%hermes resume Look at the penguins"),
        ("%hermes resume Look at the p", "%hermes resume Look at the penguins"),
        ("%hermes export markdown Look a", "%hermes export markdown Look at the penguins"),
        (f"%hermes history {ident[:-3]}", f"%hermes history {ident}"),
        ('%%hermes --session "Loo', '%%hermes --session "Look at the penguins"'),
        ("%hermes skills show tidy-n", "%hermes skills show tidy-notebook"),
        ("%hermes context ident", "%hermes context identity"),
        ("%%hermes --tools file", "%%hermes --tools files"),
        ("%%hermes --tools files,read_f", "%%hermes --tools files,read_file"),
        ("%hermes config compression.thr", "%hermes config compression.threshold"),
        ("%hermes config prompt_caching.cache_ttl 1", "%hermes config prompt_caching.cache_ttl 1h"),
        ("%hermes config vision a", "%hermes config vision auto"),
        ("%hermes config window d", "%hermes config window default"),
    ):
        assert complete(typed) == [meant]
    for line in ("%hermes resume Loo", "%hermes skills show tidy-n"):
        within(0.5, complete, line, threads=True)


def test_variables_are_offered_where_they_are_meant(complete, shell):
    shell.user_ns["my_figure"] = 1
    assert "%%hermes --image my_figure" in complete("%%hermes --image my_fig")
    assert "my_figure" in complete("my_fig")
    assert not any("%hermes status" in each for each in complete("%herme"))


def test_a_prompt_is_not_completed_with_commands(complete):
    assert "%hermes tell me the status" not in complete("%hermes tell me the sta")


class Magics:
    """As much of the magics as completion needs."""

    awake = None
    shell = SimpleNamespace(user_ns={"x": 1}, user_ns_hidden={})

    def __init__(self):
        from hermes_nb.notebook.magics import HermesMagics

        self.hermes = HermesMagics.hermes


@given(st.text(max_size=60), st.sampled_from(["%hermes ", "%%hermes ", "%hermes skills ", ""]))
def test_no_line_makes_it_raise(text, head):
    found = Completions(Magics()).offered(head + text)
    if found is not None:
        fragment, words = found
        assert (head + text).endswith(fragment)
        assert all(word.lower().startswith(fragment.lower()) for word in words)


def test_it_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'hermes_nb')\n"
        "from IPython.core.completer import provisionalcompleter\n"
        "with provisionalcompleter():\n"
        "    for text in ('%hermes ', '%%hermes --model ', '%hermes resume x'):\n"
        "        list(shell.Completer.completions(text, len(text)))\n"
        "heavy = {'openai', 'httpx', 'yaml', 'ipywidgets', 'hermes_nb.notebook.agent'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.kernel
def test_a_front_end_gets_them_from_a_real_kernel(kernel):
    kernel.run("%load_ext hermes_nb")

    def matches(code):
        ident = kernel.client.complete(code, len(code))
        while True:
            reply = kernel.client.get_shell_msg(timeout=30)
            if reply["parent_header"]["msg_id"] == ident:
                content = reply["content"]
                break
        start, end = content["cursor_start"], content["cursor_end"]
        return [code[:start] + each + code[end:] for each in content["matches"]]

    assert matches("%hermes stat") == ["%hermes status"]
    assert matches("%%hermes --approve a") == ["%%hermes --approve ask", "%%hermes --approve all"]
    assert "%hermes skills show" in matches("%hermes skills ")
    kernel.run("%unload_ext hermes_nb")
    assert "%hermes status" not in matches("%hermes stat")


@pytest.mark.kernel
def test_a_page_is_answered_while_a_cell_runs(kernel, tmp_path):
    client = kernel.client

    def ask(**content):
        message = client.session.msg("comm_info_request", content)
        client.control_channel.send(message)
        while True:
            reply = client.get_control_msg(timeout=10)
            if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                return reply["content"]

    kernel.run("%load_ext hermes_nb\ntide_table = [1]")
    over = tmp_path / "over"
    client.execute(f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.01)")
    told = ask(complete="%%hermes 😀\nsee @ti")
    assert (told["fragment"], told["matches"]) == ("@ti", ["@tide_table"])
    assert ask(complete="%%hermes --approve n")["matches"] == ["never"]
    assert ask(complete="import o")["matches"] == []
    assert ask(target_name="hermes_nb") == {"status": "ok", "comms": {}}
    over.touch()
    client.get_shell_msg(timeout=30)
    kernel.run("%unload_ext hermes_nb")
    assert "matches" not in ask(complete="%%hermes\nsee @ti")
