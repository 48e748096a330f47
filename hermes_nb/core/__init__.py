"""The agent core: values, events and the agent loop, built on the standard library only."""
