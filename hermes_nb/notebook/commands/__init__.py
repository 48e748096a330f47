"""The `%hermes` commands."""
