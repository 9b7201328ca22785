"""The Iceberg tables: catalog and coverage."""
