"""Context engines: what keeps a long conversation within the window."""
