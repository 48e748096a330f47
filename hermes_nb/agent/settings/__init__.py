"""Settings: their sources, their data classes, and the models that they select."""
