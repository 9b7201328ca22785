"""Snapshots of all tickers of an exchange."""
