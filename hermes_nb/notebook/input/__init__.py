"""What a user types: the magic line, its options, the values and files it names."""
