"""Learning: what a look back over a conversation saves, and when it is time for one."""
