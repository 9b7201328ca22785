"""Iceberg tables that pages fill, each as one value."""
