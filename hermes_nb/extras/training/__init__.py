"""Sessions as training data, and an environment that scores."""
