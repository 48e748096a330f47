"""`jupyter hermes …`: Hermes from a shell, in the layer above the one that knows Jupyter."""
