"""OpenTelemetry spans for turns."""
