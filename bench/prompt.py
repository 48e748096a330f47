"""What a request costs before anybody has said a word: the prompt's layers and the tool schemas.

Run with `make bench-prompt`. Tokens are counted by the embedded model's own tokenizer where its
weights are on this machine, next to our estimate; the limit is 2,700 for the fixed part (identity,
guidance and every schema of the default notebook toolset); with `tokens` that is all. Also prints
the CPU of building a prompt with 1,000 skills and an AGENTS.md of 20 KB, and of describing 50
tables, which is all with `cpu`.
Cold is a new process with the modules imported: the very first one with nothing kept on the disk,
and the next one, which has what that left in the home.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from figures import figure

ROUNDS = 3
FIXED, MOST = ("identity", "guidance"), 2_700
SKILL = "---\nname: {name}\ndescription: {words} number {n}, for tables and plots\n---\n\n{body}\n"


def main() -> None:
    if sys.argv[1:2] != ["cpu"]:
        with tempfile.TemporaryDirectory() as home:
            os.environ["HERMES_HOME"] = home
            _bill()
    if sys.argv[1:2] == ["tokens"]:
        return
    first, later = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as place:
            _generate(Path(place))
            time.sleep(0.3)  # files that were just written are not believed to stay as they are
            first.append(json.loads(_child(place)))
            later += [json.loads(_child(place)) for _ in range(2)]
    cold = "CPU of a prompt with 1,000 skills"
    figure(f"{cold}, the very first", min(run["cold"] for run in first), "ms", most=200)
    figure(f"{cold}, in a later process", min(run["cold"] for run in later), "ms", most=100)
    figure(f"{cold}, warm", min(run["warm"] for run in later), "ms", most=60)
    figure("CPU of the columns of 50 tables", _tables(), "ms", most=5)


def _bill() -> None:
    """Print the bill as a kernel has it, whose tools depend on there being one."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(Path(__file__).parent))
    try:
        reply = client.execute_interactive("import prompt; await prompt.bill(get_ipython())")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if reply["content"]["status"] != "ok":
        sys.exit("\n".join(reply["content"]["traceback"]))


async def bill(shell) -> None:
    from hermes_nb.agent.session.context_usage import schema_tokens, shares
    from hermes_nb.agent.session.session import Identity, Session
    from hermes_nb.memory.sessions import SqliteStore
    from hermes_nb.models.scripted import ScriptedModel
    from hermes_nb.notebook.kernel_agent import KernelAgent

    agent = KernelAgent(shell, say=print)
    agent.use(ScriptedModel([]))
    session = Session.start(
        store=SqliteStore(":memory:"),
        spec=agent.spec(agent.settings()),
        identity=Identity(source="notebook"),
        warn=print,
    )
    counter = await _tokenizer()
    print(f"{'part':28}{'estimate':>10}{'counted':>10}")
    fixed = 0
    for share in shares(session):
        if share.kind == "prompt":
            counted = await counter(share.text)
            fixed += counted if share.name in FIXED else 0
            print(f"{share.name:28}{share.tokens:10,}{counted:10,}")
    total = 0
    for tool in session.agent.tools:
        schema = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        wire = json.dumps({"type": "function", "function": schema}, separators=(",", ":"))
        counted = await counter(wire)
        total += counted
        print(f"  {tool.name:26}{'':10}{counted:10,}")
    print(f"{'tool schemas':28}{schema_tokens(session.agent.tools):10,}{total:10,}")
    print(f"{f'fixed part (limit {MOST:,})':28}{'':10}{fixed + total:10,}")
    await counter.close()
    assert fixed + total <= MOST


class _Estimate:
    """Counts nothing: there is no tokenizer here."""

    async def __call__(self, text: str) -> int:
        return round(len(text) / 3.5)

    async def close(self) -> None:
        return


class _Qwen:
    """Counts with the embedded model's tokenizer."""

    def __init__(self, server, address) -> None:
        self._server, self._address = server, address

    async def __call__(self, text: str) -> int:
        request = urllib.request.Request(
            f"{self._address.url}/tokenize",
            data=json.dumps({"content": text}).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self._address.token}",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: ASYNC210 - alone
            return len(json.load(response)["tokens"])

    async def close(self) -> None:
        self._server.stop()


async def _tokenizer():
    from hermes_nb.extras.local.model import EmbeddedServer
    from hermes_nb.extras.local.weights import locate

    path = locate()
    if path is None:
        print("the embedded model's weights are not here: `counted` is characters / 3.5")
        return _Estimate()
    server = EmbeddedServer(path, window=2_048, threads=2)
    return _Qwen(server, await server.start())


def _tables() -> float:
    """Return the CPU of a turn's summaries of 50 tables with 20 columns each, in ms."""
    import pandas
    from hermes_nb.notebook.variables import summaries

    frames = {f"t{n}": pandas.DataFrame({f"c{n}": [n * 0.5] for n in range(20)}) for n in range(50)}
    times = []
    for _ in range(20):
        before = time.process_time()
        summaries(frames)
        times.append((time.process_time() - before) * 1e3)
    return min(times)


def _child(place: str) -> str:
    command = [sys.executable, __file__, "build", place]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _generate(place: Path) -> None:
    """Write the project and the skills."""
    work = place / "work"
    work.mkdir()
    (work / "AGENTS.md").write_text("- Use tabs in Makefiles, spaces elsewhere.\n" * 480)
    for n in range(1_000):
        folder = place / "home" / "skills" / f"group-{n % 20}" / f"skill-{n}"
        folder.mkdir(parents=True)
        text = SKILL.format(name=folder.name, n=n, words="clean and check", body="x " * 400)
        (folder / "SKILL.md").write_text(text)


def _build(place: Path) -> None:
    """Print the CPU of a first and of a later prompt, in ms."""
    from hermes_nb.agent.prompt_sources import PromptSources
    from hermes_nb.agent.settings.config import load_settings
    from hermes_nb.core.tools import Tool, Toolset
    from hermes_nb.memory.sessions import SqliteStore

    settings = load_settings(home=place / "home")
    store = SqliteStore(":memory:")
    knowledge = PromptSources(settings, workdir=place / "work", store=store, tell=lambda _: None)
    tools = Toolset([Tool(name="skill_view", description="", parameters={}, run=print)])
    times = []
    for _ in range(4):
        before = time.process_time()
        material = knowledge.material(tools)
        times.append((time.process_time() - before) * 1e3)
    assert "Project Context" in material.project
    assert "more" in material.skills
    print(json.dumps({"cold": times[0], "warm": min(times[1:])}))


if __name__ == "__main__":
    _build(Path(sys.argv[2])) if sys.argv[1:2] == ["build"] else main()
