"""What the command line reads and manages, one file per noun."""
