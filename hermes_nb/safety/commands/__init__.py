"""What shell commands and code do, as far as reading them tells."""
