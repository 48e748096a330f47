"""Data that outlives a session: session store and search, curated memory, recall, providers."""
