"""The terminal's chat: the agent of a kernel, with a prompt of its own."""
