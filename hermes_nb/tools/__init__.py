"""The tools that a model can call, and the wrappers around all of them."""
