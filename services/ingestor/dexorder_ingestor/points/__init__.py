"""Runs of jobs for datasets whose rows are known by their time alone."""
