"""Messages from chat services in, answers of the agent out: `jupyter hermes gateway`."""
