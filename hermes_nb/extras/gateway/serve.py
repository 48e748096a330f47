"""`jupyter hermes gateway`: run the agent in chat apps until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

from hermes_nb.agent.settings.config import load_settings
from hermes_nb.cli.command import OK, UsageProblem
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import locked, make_private
from hermes_nb.extras.gateway.core import adapter_names, open_adapter
from hermes_nb.extras.gateway.service import Gateway


def gateway(arguments: argparse.Namespace) -> int:
    """Serve the named adapters, or all configured ones; return the exit code."""
    root = Path(arguments.cwd or ".").expanduser().absolute()
    if not root.is_dir():
        raise UsageProblem(f"there is no directory {root}")
    settings = load_settings()
    folder = settings.home / "gateway"
    make_private(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "running", 0, required=True))
        except TimeoutError:
            raise ConfigError("a gateway for this Hermes directory is already running") from None
        asyncio.run(_served(arguments.adapters, root))
    return OK


async def _served(names: list[str], root: Path) -> None:
    settings = load_settings()
    opened = {
        name: open_adapter(name, settings, _print_line)
        for name in names or adapter_names(settings) or ["web"]
    }
    _print_line(f"{', '.join(opened)}: running in {root}; press Ctrl+C to stop")
    service = Gateway(
        settings.home,
        [adapter for adapter, _ in opened.values()],
        {name: allowed for name, (_, allowed) in opened.items()},
        root=root,
        tell=_print_line,
    )
    try:
        await service.run()
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


def _print_line(line: str) -> None:
    print(visible(line, lines=True), file=sys.stderr, flush=True)
