"""Other agents in a live notebook: a real kernel, and the official client of MCP."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest

from tests.extras.mcp_server.doors import AWAITING, LOOP, TRIES, TURN, call, client, served, text

pytestmark = pytest.mark.kernel

TOOLS = {
    *("notebook_outline", "read_cells", "insert_cell", "edit_cell", "delete_cell", "move_cell"),
    *("run_cell", "run_cells", "run_python", "inspect_variable", "list_variables", "undo"),
}


@pytest.fixture(scope="module")
def running():
    """Yield a kernel that the module's tests share; other users reach its folder."""
    with TemporaryDirectory() as name, served(Path(name), Path(name) / "home") as found:
        Path(name).chmod(0o755)
        yield found


@pytest.fixture
def door(running):
    """Yield that kernel, with the notebook as it was, and nobody let in."""
    running.reset()
    yield running
    running.kernel.run("%hermes serve stop")


async def test_an_agent_looks_inserts_runs_sees_a_plot_and_undoes(door):
    told = door.serve("--approve all")
    assert "jupyter hermes mcp --kernel" in told.text
    async with client(door.env, "--notebook", str(door.path)) as session:
        tools = (await session.list_tools()).tools
        assert {each.name for each in tools} == TOOLS
        reading = {each.name for each in tools if each.annotations.readOnlyHint}
        assert reading == {
            *("notebook_outline", "read_cells", "inspect_variable", "list_variables")
        }
        assert "oak = 1" in await call(session, "list_variables")
        assert "1 cells" in await call(session, "notebook_outline")
        await call(session, "insert_cell", source="elm = oak + 1\nelm")
        cell = nbformat.read(door.path, as_version=4).cells[-1]
        assert cell.metadata["hermes"]["session"].startswith("mcp-claude-code-")
        ran = await call(session, "run_cell", id=cell.id)
        assert "2" in ran and "<untrusted" not in ran
        assert "elm = 2" in await call(session, "list_variables")
        plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
        drawn = await session.call_tool("run_python", {"code": plot})
        (image,) = (part for part in drawn.content if part.type == "image")
        assert base64.b64decode(image.data).startswith(b"\x89PNG") and image.mimeType == "image/png"
        await call(session, "edit_cell", id=cell.id, new="ash = 3")
        assert door.sources == ["oak = 1", "ash = 3"]
        assert "undone" in await call(session, "undo")
        assert door.sources == ["oak = 1", "elm = oak + 1\nelm"]
    while door.sources != ["oak = 1"]:  # the plot, the run, then the new cell
        assert "of `mcp-claude-code-" in door.kernel.run("%hermes undo").markdown
    assert door.sources == ["oak = 1"]


async def test_looking_is_answered_while_a_cell_runs_and_the_rest_waits_and_says_so(door):
    door.serve("--approve all")
    async with client(door.env) as session:
        await session.list_tools()
        door.kernel.client.execute(LOOP)
        while "is busy" not in await call(session, "notebook_outline"):
            await asyncio.sleep(0.05)
        assert "oak = 1" in await call(session, "list_variables")
        assert "oak = 1" in await call(session, "read_cells", ids=["cell-0"])
        heard: list[str] = []

        async def hear(_seconds, _total, message):
            heard.append(message)
            (door.path.parent / "go").touch()

        code = {"code": "fir = 5"}
        result = await session.call_tool("run_python", code, progress_callback=hear)
        assert not result.isError and "a cell is running" in heard[0]
        assert "fir = 5" in await call(session, "list_variables")


@pytest.mark.parametrize("name", ["run_cell", "delete_cell"])
async def test_a_cell_that_changes_while_its_call_waits_is_left_alone(door, name):
    """The user allowed the text that the cell had; reading it again allows nothing more."""
    door.serve("--approve all")
    async with client(door.env) as session:
        await call(session, "read_cells", ids=["cell-0"])
        door.kernel.client.execute(AWAITING)
        waiting = asyncio.create_task(session.call_tool(name, {"id": "cell-0"}))
        while not (door.path.parent / "began").exists():
            await asyncio.sleep(0.05)
        edited = nbformat.read(door.path, as_version=4)
        edited.cells[0].source = "open('got', 'w')"
        nbformat.write(edited, door.path)
        assert "got" in await call(session, "read_cells", ids=["cell-0"])
        (door.path.parent / "go").touch()
        result = await waiting
        assert result.isError and "has changed while the call was waiting" in text(result)
    assert door.sources == ["open('got', 'w')"] and not (door.path.parent / "got").exists()


async def test_a_cancelled_call_never_runs(door):
    door.serve("--approve all")
    reader, writer = await asyncio.open_unix_connection(door.socket)
    door.kernel.client.execute(LOOP)
    while True:
        code = {"op": "call", "name": "run_python", "arguments": {"code": "yew = 5"}}
        writer.write(json.dumps({"id": 1, **code}).encode() + b"\n")
        if "waits" in json.loads(await reader.readline()):
            break
    writer.write(b'{"id": 1, "op": "cancel"}\n')
    look = json.dumps({"id": 2, "op": "call", "name": "list_variables"})
    writer.write(look.encode() + b"\n")
    while json.loads(await reader.readline())["id"] != 2:
        pass
    (door.path.parent / "go").touch()
    door.kernel.run("yew = globals().get('yew')")
    writer.write(look.replace("2", "3").encode() + b"\n")
    while (answer := json.loads(await reader.readline()))["id"] != 3:
        pass
    assert "yew = None" in answer["text"]
    writer.close()
    await writer.wait_closed()


async def test_without_a_page_nothing_is_changed_or_run_even_in_a_turn_of_mode_all(door):
    door.serve()
    before, folder = door.path.read_bytes(), door.path.parent
    assert not door.kernel.run(TURN).error
    async with client(door.env) as session:
        for during in (False, True):
            if during:
                door.kernel.client.execute("%%hermes --approve all\ngo")
                while not (folder / "began").exists():
                    await asyncio.sleep(0.05)
            await call(session, "read_cells")
            for name, arguments in TRIES:
                result = await session.call_tool(name, arguments)
                assert result.isError and "not open in a page" in text(result), (name, text(result))
        (folder / "go").touch()
        door.kernel.run("1")
    assert door.path.read_bytes() == before
    assert not (folder / "got").exists()


def test_only_the_user_opens_the_door(door):
    assert not door.kernel.run(TURN).error
    code = "get_ipython().run_line_magic('hermes', 'serve --approve all')"
    door.kernel.run(
        f"use_model(ScriptedModel([call('run_python', code={code!r}), 'done']))\n"
        "%hermes approve all"
    )
    door.kernel.run("%%hermes --approve all\ngo")
    assert not list(door.path.parent.glob("run/hermes_nb/*.sock"))


def _flood(peer, data, times):
    for _ in range(times):
        peer.sendall(data)


def _connected(door):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(20)
    peer.connect(str(door.socket))
    return peer


async def test_peers_that_flood_hang_or_talk_nonsense_harm_nobody(door):
    door.serve()
    assert door.socket.stat().st_mode & 0o777 == 0o600
    assert door.socket.parent.stat().st_mode & 0o777 == 0o700
    with _connected(door) as flood, pytest.raises(ConnectionError):
        _flood(flood, b"x" * 1_000_000, 100)
    hanging = _connected(door)  # asks, and never reads
    hanging.setblocking(False)
    line = json.dumps({"op": "tools", "id": 1, "client": "x"}).encode() + b"\n"
    with pytest.raises(BlockingIOError):
        _flood(hanging, line, 100_000)
    for nonsense in (b"hi\n", b"[1]\n", b'{"id": []}\n', b"[" * 100_000 + b"\n", b"\xff\n"):
        with _connected(door) as peer:
            peer.sendall(nonsense)
            assert peer.recv(100) == b""
    command = [sys.executable, "-m", "hermes_nb.cli", "mcp"]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    left = subprocess.run(command, env=door.env, check=False, **options)
    assert (left.returncode, left.stdout, left.stderr) == (0, "", "")
    with _connected(door) as peer:  # dies in the middle of a call
        peer.sendall(b'{"id": 1, "op": "call", "name": "list_variables"}\n{"id')
    async with client(door.env) as session:
        assert len((await session.list_tools()).tools) == len(TOOLS)
        assert "oak = 1" in await call(session, "list_variables")
    hanging.close()
    assert not door.kernel.run("oak").error
    door.kernel.run("%hermes serve stop")
    assert not list(door.path.parent.glob("run/hermes_nb/*.sock"))


def test_another_user_is_not_answered_even_if_the_socket_can_be_reached(door):
    door.serve()
    door.socket.parent.parent.chmod(0o755)
    door.socket.parent.chmod(0o755)
    door.socket.chmod(0o666)
    ask = (
        "import socket\np = socket.socket(socket.AF_UNIX)\n"
        f"p.connect({str(door.socket)!r})\n"
        'p.sendall(b\'{"id": 1, "op": "info"}\\n\')\nprint(p.recv(1000))'
    )
    said = [
        subprocess.run(
            [*words, "python3", "-c", ask], check=False, capture_output=True, text=True, cwd="/"
        ).stdout
        for words in ([], ["setpriv", "--reuid=65534", "--clear-groups"])
    ]
    assert "kernel" in said[0]
    assert "kernel" not in said[1]
