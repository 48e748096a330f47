"""What a turn in a notebook does without: each a room that comes in by entry points."""
