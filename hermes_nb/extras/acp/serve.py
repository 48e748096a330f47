"""`jupyter hermes acp`: serve one client by standard input and output, until it leaves."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from hermes_nb.cli.command import OK, UsageProblem
from hermes_nb.core.errors import ConfigError

if TYPE_CHECKING:
    import acp as protocol

NO_CLIENT = (
    "an editor starts this command and talks to it by standard input and output; "
    "`jupyter hermes chat` talks to Hermes in a terminal"
)


def acp(arguments: argparse.Namespace) -> int:
    """Serve until the client closes standard input; return the exit code."""
    if sys.stdin.isatty():
        raise UsageProblem(NO_CLIENT)
    if find_spec("acp") is None:
        raise ConfigError("this needs `pip install 'hermes_nb[acp]'`")
    wishes = {name: getattr(arguments, name) for name in ("model", "approve")}
    asyncio.run(_served(wishes, arguments.kernel or ""))
    return OK


async def _served(wishes: dict[str, str | None], kernel: str) -> None:
    from acp import run_agent, stdio_streams
    from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES

    from hermes_nb.extras.acp.agent import HermesAgent

    # Only the protocol may write to standard output: move it, and let `print` use standard error.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reader, writer = await stdio_streams(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
    sys.stdout = sys.stderr
    agent = HermesAgent(wishes, kernel=kernel)
    try:
        await run_agent(cast("protocol.Agent", agent), writer, reader, use_unstable_protocol=True)
    finally:
        await agent.aclose()
