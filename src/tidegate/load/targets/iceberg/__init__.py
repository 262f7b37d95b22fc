"""Iceberg tables as targets."""
