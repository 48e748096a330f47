"""Undo: records what a turn changes in files and cells, and reverts it."""
