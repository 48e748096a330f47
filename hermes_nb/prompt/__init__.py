"""The system prompt and the instruction files in it."""
