"""Iceberg tables: declarations, rows of coverage, catalog."""
