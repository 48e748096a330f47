"""OpenTelemetry spans of turns."""
