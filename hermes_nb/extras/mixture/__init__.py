"""Several models that answer as one, and a model that sees for one that does not."""
