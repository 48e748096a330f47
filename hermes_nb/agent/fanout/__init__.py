"""Fan-out: one prompt over many inputs, and where those tasks run."""
