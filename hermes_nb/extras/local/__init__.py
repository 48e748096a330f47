"""The built-in model: its server process, and tool calls by a very small model."""
