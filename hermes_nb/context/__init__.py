"""Context engines, which keep long conversations within the context window."""
