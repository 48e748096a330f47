"""Mixtures of several models that answer as one."""
