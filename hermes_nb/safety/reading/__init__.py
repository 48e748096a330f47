"""A text as a reader would take it, and the means to look for many things in it at once."""
