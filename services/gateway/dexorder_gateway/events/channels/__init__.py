"""Channels to a user outside of sessions."""
