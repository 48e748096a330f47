"""The database file of the session store: its rows, its schema, and how it outlives damage."""
