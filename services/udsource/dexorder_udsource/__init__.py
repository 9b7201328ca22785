"""A Kafka topic behind Numaflow's source contract (source.v1): plain for Numaflow, replayable for Spark."""
