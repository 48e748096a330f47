"""Mixtures of several models, and vision for a model that cannot see."""
