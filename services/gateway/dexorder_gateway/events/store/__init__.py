"""Outbox: the SQLite file of events, and the values read from it."""
