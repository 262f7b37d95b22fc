"""Processes and threads that drive the use cases."""
