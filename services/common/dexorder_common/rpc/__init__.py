"""gRPC servers and channels: errors, identity, start and stop."""
