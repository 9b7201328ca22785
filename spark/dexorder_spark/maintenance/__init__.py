"""Maintenance of the Iceberg tables between batches."""
