"""The agent put together: settings, sessions, children, maps, reviews and undo; no Jupyter."""
