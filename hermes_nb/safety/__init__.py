"""What may pass: the one decision point for every tool call, and redaction of secrets."""
