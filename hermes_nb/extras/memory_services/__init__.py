"""Memory providers for third-party memory services."""
