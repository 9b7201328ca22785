"""The relay: takes requests, splits them into jobs, hands jobs to ingestors, decides how each request ends."""
