"""Undo: what a turn changed in files and cells, and how that is taken back."""
