"""Kafka: client options and errors, and the record of a page."""
