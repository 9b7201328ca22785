"""Kafka: client options and the record of a page."""
