"""The embedded model's weights: what they are, where they lie, how they get there."""
