"""Markdown taken apart and cleaned, sign by sign."""
