"""Optional parts that a turn in a notebook does not need, loaded through entry points."""
