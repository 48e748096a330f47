"""`jupyter hermes gateway` as a process, and the model behind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hermes_nb.extras.gateway.turns import GO_ON

from tests.e2e.harness import import_path
from tests.loopback import Exchange, Loopback, Reply, calls, says


class Model(Loopback):
    """Answers a text by its first word: `call NAME JSON` calls a tool, all else is repeated."""

    def take(self, exchange: Exchange) -> Reply:
        super().take(exchange)
        *before, last = exchange.json["messages"]
        if last["role"] == "tool":
            return says(f"It said: {text_of(last)}")
        text = text_of(last).partition(GO_ON[:30])[0].strip()
        asked = [text_of(each) for each in before if each["role"] == "user"]
        text = text or asked[-1]  # it goes on with what a kill has cut short
        word, _, rest = text.partition(" ")
        if word == "call":
            name, _, arguments = rest.partition("\n")[0].partition(" ")
            return calls((name, arguments))
        return says(f"You said: {text}")

    def __init__(self) -> None:
        super().__init__(says(""))


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message on the wire."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "[picture]") for part in content)


class Process:
    """A gateway with a home and a working directory of its own, which can be killed and go on."""

    python = sys.executable

    def __init__(self, folder: Path, model: Model, settings: dict[str, Any], **secrets: str):
        self.home, self.work, self.log = folder / "home", folder / "work", folder / "gateway.log"
        self.home.mkdir()
        self.work.mkdir()
        self._secrets = secrets
        config = {
            "model": {"default": "m", "base_url": model.url, "context_length": 200_000},
            "hermes_nb": {"vision": True},
            "gateway": settings,
        }
        (self.home / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")

    def start(self) -> None:
        own = {
            "HERMES_HOME": str(self.home),
            "PYTHONPATH": import_path(),
            "OPENAI_API_KEY": "x",
            **self._secrets,
        }
        with self.log.open("ab") as said:
            self._process = subprocess.Popen(
                [self.python, "-m", "hermes_nb.cli", "gateway"],
                env={**os.environ, **own},
                cwd=self.work,
                stdout=said,
                stderr=said,
            )

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def told(self) -> str:
        return self.log.read_text("utf-8", "replace")


def waited(condition: Callable[[], object], gateway: Process, seconds: float = 90.0) -> None:
    """Wait until a condition holds; fail with what the gateway has said."""
    from tests.patience import until

    assert until(condition, seconds), gateway.told[-5000:]
