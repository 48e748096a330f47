"""01 has no script: the embedded model answers for itself."""
