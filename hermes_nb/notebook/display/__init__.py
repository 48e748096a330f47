"""What a turn shows: below its cell, in a terminal, of its children and maps."""
