"""What outlives a kernel: the session store."""
