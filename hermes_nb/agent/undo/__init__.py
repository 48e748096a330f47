"""Undo: records a turn's changes to files and cells, and reverts them."""
