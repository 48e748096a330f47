"""Maps: one prompt over many inputs, and the executors of its tasks."""
