"""The built-in model: its server process, and how a very small model is led to call tools."""
