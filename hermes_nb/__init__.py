"""Hermes, a self-improving agent that lives inside the Jupyter kernel."""

__version__ = "0.1.0"
