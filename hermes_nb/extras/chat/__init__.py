"""Chat with the agent of a kernel in a terminal."""
