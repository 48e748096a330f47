"""Finding messages by what they say: what a query asks, what the index knows, what fits best."""
