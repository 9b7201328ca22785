"""The broker: port 5567, slots and leases, and how often a job is tried again."""
