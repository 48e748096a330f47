"""What curated memory is made of: entries, the changes to them, and where each came from."""
