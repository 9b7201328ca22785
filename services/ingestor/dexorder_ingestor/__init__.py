"""The ingestor: takes jobs from the relay's broker, asks exchanges, and publishes verified pages."""
