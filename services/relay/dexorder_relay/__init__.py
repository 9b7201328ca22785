"""Relay: accepts requests, splits them into jobs, gives jobs to ingestors, decides the outcome of each request."""
