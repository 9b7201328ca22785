"""gRPC services of the relay."""
