"""Hermes in editors and chats: an agent of the Agent Client Protocol."""
