"""What the tests of a kernel's faults share: cells with `%%hermes`, and the provider they reach."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.provider import MODEL, check_request
from tests.kernels import Kernel, Result, kernel
from tests.loopback import Loopback, Reply, stream, text_chunks


class Cells:
    """A kernel, its provider and its working directory."""

    def __init__(self, running: Kernel, server: Loopback, folder: Path) -> None:
        self.kernel = running
        self.server = server
        self.folder = folder

    def begin(self) -> None:
        """Forget what was sent and what was asked, and start a session."""
        while self.kernel.client.stdin_channel.msg_ready():
            self.kernel.client.get_stdin_msg(timeout=1)
        self.plays(stream(text_chunks("unset")))
        started = self.run("%hermes new")
        assert started.status == "ok", started.error

    def plays(self, *replies: Reply) -> None:
        """Set what the provider answers from now on."""
        self.server.replies[:] = replies
        self.server.exchanges.clear()

    def run(self, code: str, **how: Any) -> Result:
        """Run a cell as it stands."""
        return self.kernel.run(code, **how)

    def ask(
        self,
        *replies: Reply,
        prompt: str = "go",
        options: str = "",
        stop_on: str = "",
        ends: str = "",
        **how: Any,
    ) -> Result:
        """Take a turn in a cell, which the provider answers with `replies`.

        The cell ends "ok", or with an "error" where it is stopped, unless `ends` says otherwise.
        """
        if replies:
            self.plays(*replies)
        result = self.run(f"%%hermes {options}\n{prompt}", stop_on=stop_on, **how)
        assert result.status == (ends or ("error" if stop_on else "ok")), result.error
        for body in self.server.bodies:
            check_request(body)
        return result

    def goes_on(self) -> list[dict[str, Any]]:
        """Take another turn, which must work, and return the messages it sent."""
        result = self.ask(stream(text_chunks("All is well.")), prompt="and now?")
        assert "All is well." in result.markdown
        assert len(self.server.exchanges) == 1
        return self.sent

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The messages of the last request."""
        messages: list[dict[str, Any]] = self.server.bodies[-1]["messages"]
        return messages

    @property
    def results(self) -> list[str]:
        """What the model was given as results of its calls, in the last request."""
        return [message["content"] for message in self.sent if message["role"] == "tool"]

    def printed(self, code: str) -> str:
        """Run a cell that prints, and return what it printed."""
        result = self.run(code)
        assert result.status == "ok", result.error
        return result.text.strip()


def environment(server: Loopback, folder: Path, **more: str) -> dict[str, str]:
    """Return what a kernel has to know to reach `server`, with a home in `folder`."""
    env = {**os.environ, "HERMES_HOME": str(folder / "home"), "IPYTHONDIR": str(folder / "ipython")}
    return env | {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": MODEL} | more


@contextmanager
def served_kernel(server: Loopback, folder: Path, **more: str) -> Iterator[Kernel]:
    """Start a kernel in `folder` with hermes_nb loaded."""
    with kernel(environment(server, folder, **more), cwd=str(folder)) as running:
        assert running.run("%load_ext hermes_nb").status == "ok"
        yield running
