"""Store sessions on a PostgreSQL server."""
