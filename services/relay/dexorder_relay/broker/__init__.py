"""Broker: port 5567, and the slots and leases of jobs."""
