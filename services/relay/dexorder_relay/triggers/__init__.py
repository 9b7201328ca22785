"""Triggers: registration, events, alerts and backtests."""
