"""Thread that owns the sockets, the outbox and the delivery rules, and its side in the event loop."""
