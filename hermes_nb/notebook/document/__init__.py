"""The notebook as cells: open in a page, in its file, or as far as a shell knows it."""
