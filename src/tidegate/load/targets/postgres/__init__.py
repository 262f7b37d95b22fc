"""Postgres tables as targets."""
