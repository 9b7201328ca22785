"""What differs between exchanges: one table of facts, and the pure readers of their answers."""
