"""The only layer that knows a model provider."""
