"""Reads of the Iceberg tables for answers to clients and for the outcomes of requests."""
