"""Runs the whole suite as local processes."""
