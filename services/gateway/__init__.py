"""Kafka by gRPC; later also the door through which user events leave."""
