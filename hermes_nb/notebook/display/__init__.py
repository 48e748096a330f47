"""Display a turn: in its cell or in a terminal, with its tool calls, changes and images."""
