"""Processes of the history chain."""
