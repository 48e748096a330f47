"""The agent itself: values, events and the loop, on the standard library alone."""
