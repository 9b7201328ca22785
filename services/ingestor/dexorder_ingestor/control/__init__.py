"""Instructions of the relay to a running ingestor."""
