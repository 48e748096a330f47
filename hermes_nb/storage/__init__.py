"""Robust SQLite database files, and the splitting of text into search terms."""
