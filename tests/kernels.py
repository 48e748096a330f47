"""Real kernels for tests: start one, run cells in it, press stop, look at what came out."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

Started = tuple[KernelManager, BlockingKernelClient]


@dataclass
class Result:
    """What a cell gave. `messages` counts what went to the front end for its outputs."""

    status: str = ""
    outputs: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    messages: int = 0
    prompts: list[str] = field(default_factory=list)
    hidden: list[bool] = field(default_factory=list)
    stop_seconds: float | None = None
    reply: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All the output as plain text."""
        return "\n".join(_text(output) for output in self.outputs)

    @property
    def printed(self) -> str:
        """What went to the standard streams, in one piece."""
        return "".join(output.get("text", "") for output in self.outputs)

    @property
    def mimes(self) -> list[str]:
        """The kinds of data that the displays have."""
        return [kind for output in self.outputs for kind in output.get("data", {})]

    @property
    def markdown(self) -> str:
        """The Markdown of the displays, as they were last updated."""
        shown = [output.get("data", {}).get("text/markdown", "") for output in self.outputs]
        return "\n\n".join(text for text in shown if text)


class Kernel:
    """A running kernel and its client."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient | None = None) -> None:
        self.manager = manager
        self.client = client or connected(manager)

    def run(
        self,
        code: str,
        *,
        answers: tuple[str, ...] = (),
        allow_stdin: bool = False,
        stop_on: str = "",
        stop_delay: float = 0.0,
        timeout: float = 60,
        cell_id: str = "",
    ) -> Result:
        """Run a cell; `answers` go to `input()`, `stop_on` presses stop once that text is shown.

        `stop_delay` waits a moment before that, in seconds. `cell_id` is sent as pages do.
        """
        result, waiting = Result(), list(answers)
        sent = self._send(code, cell_id, allow_stdin=allow_stdin or bool(answers))
        deadline = time.monotonic() + timeout
        stopped = None
        while True:
            if time.monotonic() > deadline:
                message = f"the cell took longer than {timeout} s; so far: {result.text[-2000:]}"
                raise TimeoutError(message)
            self._answer(result, waiting)
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            if self._take(message, result):
                break
            if stop_on and stopped is None and stop_on in result.text + result.markdown:
                time.sleep(stop_delay)
                self.manager.interrupt_kernel()
                stopped = time.monotonic()
        if stopped is not None:
            result.stop_seconds = time.monotonic() - stopped
        while (reply := self.client.get_shell_msg(timeout=timeout))["parent_header"][
            "msg_id"
        ] != sent:
            pass
        result.reply = reply["content"]
        result.status = result.reply["status"]
        return result

    def _send(self, code: str, cell_id: str, *, allow_stdin: bool) -> str:
        """Send a cell and return the request's id."""
        if not cell_id:
            return self.client.execute(code, allow_stdin=allow_stdin)
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": allow_stdin, "stop_on_error": True}
        request = self.client.session.msg("execute_request", content)
        request["metadata"] = {"cellId": cell_id}
        self.client.shell_channel.send(request)
        return str(request["header"]["msg_id"])

    def _answer(self, result: Result, waiting: list[str]) -> None:
        if not waiting:
            return
        try:
            asked = self.client.get_stdin_msg(timeout=0.01)
        except queue.Empty:
            return
        result.prompts.append(asked["content"]["prompt"])
        result.hidden.append(asked["content"]["password"])
        self.client.input(waiting.pop(0))

    def killed_and_restarted(self) -> Kernel:
        """Kill the kernel where it stands, and return the one that was started in its place.

        `restart_kernel` alone would interrupt it first, which stops what runs in good order.
        """
        self.client.stop_channels()
        if self.manager.is_alive():
            os.kill(self.manager.provisioner.process.pid, signal.SIGKILL)
        self.manager.restart_kernel(now=True)
        return Kernel(self.manager)

    @staticmethod
    def _take(message: dict[str, Any], result: Result) -> bool:
        """Take in a message; say whether the cell is done."""
        kind, content = message["msg_type"], message["content"]
        if kind == "status":
            return content["execution_state"] == "idle"
        if kind == "stream":
            result.outputs.append({"text": content["text"]})
        elif kind in ("display_data", "execute_result"):
            result.outputs.append(content)
        elif kind == "update_display_data":
            place = content["transient"]
            there = [each for each in result.outputs if each.get("transient") == place]
            for output in there:
                output["data"] = content["data"]
            if not there:  # another cell has shown it
                result.outputs.append(content)
        elif kind == "error":
            result.error = content
        else:
            return False
        result.messages += 1
        return False


def _text(output: dict[str, Any]) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain", "")


@contextmanager
def kernel(env: dict[str, str], *, cwd: str, name: str = "python3") -> Iterator[Kernel]:
    """Start a kernel with that environment and end it."""
    running = Kernel(*started(env=env, cwd=cwd, kernel_name=name))
    try:
        yield running
    finally:
        running.client.stop_channels()
        running.manager.shutdown_kernel(now=True)
        running.manager.cleanup_resources()


def started(*, kernel_name: str = "python3", **options: Any) -> Started:
    """Return the manager of a new kernel, and its client when that is ready.

    Ports are looked for before the kernel opens them: another process may have one by then, with
    which the kernel dies. So one that dies is started a second time.
    """
    for last in (False, True):
        manager = KernelManager(kernel_name=kernel_name)
        manager.start_kernel(**options)
        try:
            return manager, connected(manager)
        except BaseException as error:
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
            if last or not isinstance(error, RuntimeError):
                raise
    raise AssertionError


def connected(manager: KernelManager) -> BlockingKernelClient:
    """Return a client of a kernel that answers."""
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
    except BaseException:
        client.stop_channels()
        raise
    return client
