"""Iceberg tables that the pipeline fills, each as one value."""
