"""The command definition of `%hermes serve`."""

from __future__ import annotations

from hermes_nb.notebook.commands.table import Command, declared

SERVE = declared(
    Command(
        name="serve",
        group="Automate",
        about="let other agents on this computer use this notebook (MCP)",
        run="hermes_nb.extras.mcp_server.door:serve",
        page="howto/mcp-server.md",
        examples=("serve", "serve --approve edits", "serve stop"),
        parse=True,
        values={
            "start": "accept calls from `jupyter hermes mcp` until the kernel ends (default)",
            "stop": "accept no more calls",
            "[--approve MODE]": "ask (default), edits, all or never: what they do without approval",
        },
    )
)
