"""What outlives a session: the session store and its search, curated memory, recall, providers."""
