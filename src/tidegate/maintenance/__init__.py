"""Iceberg tables: facts, health, recommendation and maintenance."""
