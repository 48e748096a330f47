"""Full-text search over messages: query, index and ranking."""
