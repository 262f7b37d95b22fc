"""What ran, when, and how it ended."""
