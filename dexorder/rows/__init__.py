"""Rows of the tables as Arrow data, and how they are read from the catalog."""
