"""Streaming pipeline: turns udsource's records into rows of Iceberg tables and results for the relay."""
