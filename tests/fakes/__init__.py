"""Stand-ins for peers."""
