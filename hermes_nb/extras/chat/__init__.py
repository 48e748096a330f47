"""Chat with a kernel's agent in a terminal."""
