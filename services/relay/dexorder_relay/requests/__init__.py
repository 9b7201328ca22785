"""Requests from submission to outcome, and the jobs that they need."""
