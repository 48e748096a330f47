"""Sessions on a PostgreSQL server."""
