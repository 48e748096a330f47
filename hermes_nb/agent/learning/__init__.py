"""Learning: background reviews that save memory and skills, and when they run."""
