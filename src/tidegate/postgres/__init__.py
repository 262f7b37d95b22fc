"""Connecting to PostgreSQL, and the server that comes with Tidegate."""
