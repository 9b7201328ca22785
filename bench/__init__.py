"""Measurements; one script a table in the docs."""
