"""Memory services of others, as memory providers."""
