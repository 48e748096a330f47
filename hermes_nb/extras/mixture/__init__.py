"""Mixtures: several models that answer as one."""
