"""The tools a model can call, and the wrappers that cut across them."""
