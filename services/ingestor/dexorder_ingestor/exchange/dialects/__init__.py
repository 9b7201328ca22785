"""Facts about each exchange, and the readers of their trades."""
