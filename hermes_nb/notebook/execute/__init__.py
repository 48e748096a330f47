"""Running code in the kernel and catching what it prints and shows."""
