"""Values of the namespace as they are told to a model and shown to a user."""
