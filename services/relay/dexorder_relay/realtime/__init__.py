"""Realtime subscriptions: their jobs, live data, and the control of ingestors."""
