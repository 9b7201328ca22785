"""Running suite, Kafka brokers, processes, ports, reports and the oracle, shared by tests and benchmarks."""
