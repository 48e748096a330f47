"""Prompts and notebooks that run by the clock."""
