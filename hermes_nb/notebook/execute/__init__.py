"""Run code in the kernel and capture its output."""
