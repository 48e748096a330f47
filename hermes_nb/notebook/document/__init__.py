"""The notebook as cells: open in a front end, closed in its file, or only in the input history."""
