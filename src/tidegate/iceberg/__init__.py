"""Iceberg: the catalog, what tables say of themselves, and the commits made to them."""
