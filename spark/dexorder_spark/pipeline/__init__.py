"""Micro-batches of the streaming query: decode, commit, report, coverage."""
