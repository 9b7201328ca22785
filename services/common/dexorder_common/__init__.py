"""Modules that several services share."""
