"""The application: configuration, sessions, and the one place that names concrete classes."""
