"""Rows as the command prints and writes them."""
