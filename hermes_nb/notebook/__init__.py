"""The only layer that knows Jupyter."""
