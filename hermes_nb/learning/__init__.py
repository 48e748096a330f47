"""What the agent learns from its own work: when to look back, and how."""
