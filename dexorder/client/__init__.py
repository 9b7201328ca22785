"""The client: asynchronous and blocking, and all calls to the relay."""
