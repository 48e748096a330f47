"""Another user's server on a known port is offered with a question, and never adopted."""

from __future__ import annotations

import io
import os
import socket
import sys

import pytest
from hermes_nb import Hermes
from hermes_nb.cli.main import main
from hermes_nb.core.errors import ConfigError
from hermes_nb.models import servers
from hermes_nb.models.servers import accepted_in
from hermes_nb.notebook.interrupt import TurnFailed

from tests.faults.cells import served_kernel
from tests.loopback import Loopback, document, stream, text_chunks
from tests.notebook.desks import Desk

NOBODY = 65_534
LISTING = document({"data": [{"id": "their-model"}]})


class Terminal(io.StringIO):
    """Standard input with somebody in front of it."""

    def isatty(self):
        return True


@pytest.fixture
def server(monkeypatch):
    """Yield a server where Ollama would be."""
    with Loopback(stream(text_chunks("Hello.")), listing=LISTING) as running:
        monkeypatch.setattr(servers, "LOCAL_SERVERS", {"Ollama": running.url})
        monkeypatch.setenv("HERMES_NB_GGUF", "/nowhere")  # the built-in model cannot answer
        yield running


@pytest.fixture
def owned_by(server, tmp_path, monkeypatch):
    """Return a function that writes a table of sockets in which a user has the server's."""

    def write(uid):
        port = int(server.url.rpartition(":")[2].removesuffix("/v1"))
        sockets.mkdir(exist_ok=True)
        row = f"   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000"
        (sockets / "tcp").write_text(f"  sl  local_address ...\n{row}  {uid}        0 1 1 0\n")

    sockets = tmp_path / "net"
    monkeypatch.setattr(servers, "SOCKETS", sockets)
    write(NOBODY)
    return write


@pytest.fixture
def answer(monkeypatch):
    """Return a function that sets what the user at the terminal will type."""

    def types(*lines):
        monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{line}\n" for line in lines)))

    return types


@pytest.fixture
def desk(shell, tmp_path, monkeypatch):
    """Return a function that makes the agent of a new kernel."""
    made = []

    def new():
        made.append(Desk(shell))
        return made[-1]

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield new
    for each in made:
        each.agent.close()


def test_70_no_is_for_this_kernel(server, owned_by, desk, answer, capsys, home):
    answer("n")
    first = desk()
    with pytest.raises(ConfigError):
        first.ask()
    asked = capsys.readouterr().out
    assert f"Ollama at {server.url} (another user's: " in asked and "their-model" in asked
    answer()  # nothing is left to read: a second question would end the turn in another way
    with pytest.raises(ConfigError):
        first.ask()
    assert "Use which" not in capsys.readouterr().out
    assert "found, not accepted" in first("models") and "found, not accepted" in first("status")
    assert server.exchanges == [] and not accepted_in(home)
    answer("n")
    with pytest.raises(ConfigError):
        desk().ask()
    assert "Use which" in capsys.readouterr().out


def test_70_yes_is_remembered_until_the_owner_is_another(
    server, owned_by, desk, answer, capsys, home
):
    answer("y")
    first = desk()
    first.ask("my data")
    assert "my data" in str(server.bodies) and first.agent.models.name == "their-model"
    assert "Use which" in capsys.readouterr().out
    answer()
    second = desk()
    second.ask()
    assert "Use which" not in capsys.readouterr().out and len(server.exchanges) == 2
    owned_by(0 if os.geteuid() else 1234)
    with pytest.raises(TurnFailed, match="not whose you accepted"):
        second.ask("a secret")  # in the middle of a kernel's life
    answer("n")
    for kernel in (second, desk()):
        with pytest.raises(ConfigError):
            kernel.ask("a secret")
        assert "another user's" in capsys.readouterr().out
    assert "a secret" not in str(server.bodies)
    owned_by(NOBODY)
    desk().ask("back again")
    assert "back again" in str(server.bodies)
    assert "Accepted: " in second("models")
    second("models forget")
    assert not accepted_in(home) and "found, not accepted" in second("models")


def test_70_a_command_asks_once_more(server, owned_by, desk, answer, capsys, monkeypatch):
    answer("n")
    first = desk()
    with pytest.raises(ConfigError):
        first.ask()
    answer("1")
    assert "Accepted: Ollama" in first("models accept")
    first.ask()
    assert len(server.exchanges) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(ConfigError, match="nobody can be asked"):
        desk()("models accept")


def test_70_where_nobody_is_there_only_configuration_counts(
    server, owned_by, desk, monkeypatch, home
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\n"))
    with pytest.raises(ConfigError):
        desk().ask("my data")
    with Hermes() as hermes:
        assert hermes.ask("my data").reason == "failed"
    assert main(["run", "my data"]) == 1
    assert server.exchanges == [] and server.asked == []
    with Hermes(base_url=server.url) as hermes:
        assert hermes.ask("hi").text == "Hello."


def test_70_a_prompt_in_a_shell_asks_too(server, owned_by, answer, capsys):
    answer("n")
    assert main(["run", "my data"]) == 1
    assert "another user's" in capsys.readouterr().err and server.exchanges == []
    answer("y")
    assert main(["run", "hi"]) == 0
    with Hermes() as hermes:  # what was accepted counts in scripts of this home too
        assert hermes.ask("hi").text == "Hello."


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="becomes another user"
)
def test_70_the_owner_of_a_real_socket():
    def owners(host, family=socket.AF_INET):
        os.seteuid(NOBODY)
        try:
            listener = socket.create_server((host, 0), family=family, dualstack_ipv6=family != 2)
        finally:
            os.seteuid(0)
        with listener:
            return servers.owner_of(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")

    assert owners("127.0.0.1") == owners("0.0.0.0") == NOBODY
    assert not socket.has_dualstack_ipv6() or owners("::", socket.AF_INET6) == NOBODY


@pytest.mark.kernel
def test_70_in_a_notebook(server, owned_by, tmp_path):
    there = (
        "from pathlib import Path; from hermes_nb.models import servers\n"
        f"servers.LOCAL_SERVERS = {{'Ollama': {server.url!r}}}\n"
        f"servers.SOCKETS = Path({str(servers.SOCKETS)!r})"
    )
    with served_kernel(server, tmp_path, HERMES_NB_BASE_URL="", HERMES_NB_MODEL="") as kernel:
        assert kernel.run(there).status == "ok"
        assert kernel.run("%%hermes\nmy data").status == "error"  # as nbclient runs it
        assert server.exchanges == []
        result = kernel.run("%%hermes\nmy data", answers=("y",))
        assert "another user's" in result.prompts[0]
        assert "Hello." in result.markdown and len(server.exchanges) == 1
