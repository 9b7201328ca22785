"""Open sessions of users over gRPC and WebSocket."""
