"""User events: containers reach their users; what is CRITICAL always."""
