"""The command-line definition of `jupyter hermes mcp`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import OK, Subcommand
from hermes_nb.core.errors import ConfigError


def _arguments(made: argparse.ArgumentParser) -> None:
    which = made.add_mutually_exclusive_group()
    which.add_argument(
        "--kernel", default="", metavar="ID", help="the kernel: its ID, or the start of it"
    )
    which.add_argument("--notebook", default="", metavar="PATH", help="the kernel of this notebook")
    made.add_argument("--list", action="store_true", help="list the kernels that can be used")
    made.add_argument(
        "--http", type=int, metavar="PORT",
        help="serve HTTP on this computer, at this port (0: any), instead of standard input",
    )  # fmt: skip


def _mcp(given: argparse.Namespace) -> int:
    """Serve MCP for one kernel, or list the kernels."""
    import asyncio

    from hermes_nb.extras.mcp_server.link import Choice, Kernel, kernels, shown

    if given.list:
        for _, info in asyncio.run(kernels()):
            print(shown(info))
        return OK
    try:
        from hermes_nb.extras.mcp_server.server import over_http, over_stdio
    except ImportError as error:
        raise ConfigError(f"this needs `pip install 'hermes_nb[mcp]'` ({error})") from error
    kernel = Kernel(Choice(kernel=given.kernel, notebook=given.notebook))
    asyncio.run(over_stdio(kernel) if given.http is None else over_http(kernel, given.http))
    return OK


MCP = Subcommand(
    about="an MCP server, so that another agent can use a live notebook",
    arguments=_arguments,
    page="howto/mcp-server.md",
    examples=("mcp --list", "mcp --notebook analysis.ipynb", "mcp --http 8765"),
    run=_mcp,
)
