"""The tools that only a notebook has: its cells, its kernel, its variables."""
