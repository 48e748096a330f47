"""Connect the agent to chat services: `jupyter hermes gateway`."""
