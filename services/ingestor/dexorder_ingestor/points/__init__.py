"""Runs of jobs for datasets with rows that are known by their time alone."""
