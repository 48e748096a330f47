"""Maps: one prompt over many inputs, and the executors for its tasks."""
