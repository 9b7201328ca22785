"""User events: containers notify their users; CRITICAL events until one channel delivers them."""
