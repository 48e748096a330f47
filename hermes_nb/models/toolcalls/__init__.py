"""Reading tool calls as models write them: arguments, streamed fragments, plain text."""
