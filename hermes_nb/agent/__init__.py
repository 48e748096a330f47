"""The complete agent: settings, sessions, children, maps, reviews and undo, without Jupyter."""
