"""The built-in model: its weights, its server process, and tool calling for a very small model."""
