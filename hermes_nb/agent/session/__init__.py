"""Sessions: a conversation, its stored rows, and which session a kernel uses."""
