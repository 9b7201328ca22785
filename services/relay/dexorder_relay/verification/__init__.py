"""Verification of the tables against coverage and against the exchange, and repair."""
