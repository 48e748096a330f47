"""Sessions: one conversation, its rows, which of them a kernel is in."""
