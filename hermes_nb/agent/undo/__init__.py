"""Undo: records a turn's changes of files and cells, and reverts them."""
