"""Export sessions as training data, and score models in an environment."""
