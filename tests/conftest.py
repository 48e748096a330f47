"""What every test may use: a home of its own, agents over scripted models, folds over events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from hermes_nb.agent.settings.endpoints import PROVIDERS
from hermes_nb.core.events import Event
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.safety import administrator
from hypothesis import HealthCheck, settings

# jsonschema takes it if it is there, at three seconds of CPU a process; no test is about its IRIs.
sys.modules.setdefault("rfc3987_syntax", None)

# A deadline or a slow first draw says something about the machine, nothing about the code.
settings.register_profile(
    "hermes", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("quick", settings.get_profile("hermes"), max_examples=20)
settings.load_profile("hermes")

pytest_plugins = ("tests.prefix",)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As background jobs of a script are started: the tests of the stop button need to be heard.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For kernels that tests start: their cells choose the approval mode; tests of that take it away.
os.environ.setdefault("HERMES_NB_CEILING", "all")

KEYS = (
    "OPENAI_BASE_URL",
    "HERMES_NB_MODEL",
    *(each.key for each in PROVIDERS.values() if each.key),
)

LONG = ("embedded", "kernel", "slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with the files that wait the longest, so that parallel workers end with short ones."""
    marked = ((item.path, item.get_closest_marker(name)) for item in items for name in LONG)
    long = Counter(path for path, marker in marked if marker)
    items.sort(key=lambda item: -long[item.path])


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Give every test an empty HERMES_HOME and no key."""
    path = tmp_path / "hermes-home"
    monkeypatch.setenv("HERMES_HOME", str(path))
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    return path


@pytest.fixture(autouse=True)
def restarted():
    """Forget after a test what code in it has loaded from the network, for the whole process."""
    yield
    if "hermes_nb.notebook.execute.network" in sys.modules:
        from tests.safety.seat import restarted

        restarted()


@pytest.fixture
def open_path():
    """Yield a directory that other users reach; pytest closes those of its own to them."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name).resolve()
        path.chmod(0o755)
        yield path


@pytest.fixture
def administered(tmp_path, monkeypatch):
    """Return a function that puts a policy in force for this process, as if root had written it."""
    folder = tmp_path / "administrator"

    def put(**keys) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / administrator.FILE).write_text(json.dumps({administrator.SECTION: keys}))
        administrator._known.clear()
        monkeypatch.setattr(administrator, "PLACES", (folder,))
        monkeypatch.setattr(administrator, "not_roots", lambda path: "")
        return folder / administrator.FILE

    return put


@pytest.fixture
def make_agent():
    """Return a function that makes an agent which plays the given steps."""

    def make(*steps, tools: Sequence[Tool] = (), **options) -> Agent:
        return Agent(ScriptedModel(steps), Toolset(tools), **options)

    return make


async def collect(agent: Agent, prompt="go", **options) -> list[Event]:
    """Return the events of one turn."""
    async with aclosing(agent.run(prompt, **options)) as events:
        return [event async for event in events]


def take_turn(agent: Agent, prompt="go", **options) -> list[Event]:
    """Take one turn on a loop of its own."""
    return asyncio.run(collect(agent, prompt, **options))


def every_call_has_one_result(messages: Sequence[Message]) -> bool:
    """Say whether each call is answered once, in order, right behind its message."""
    expected: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not expected or expected.pop(0) != message.call_id:
                return False
            continue
        if expected:
            return False
        expected = [call.id for call in message.calls]
    return not expected
