"""The live notebook for other agents: an MCP server in front of a kernel."""
