"""The gateway: Kafka by gRPC, and user events."""
