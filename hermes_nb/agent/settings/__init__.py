"""Settings: where they come from, what each means, the models they name."""
