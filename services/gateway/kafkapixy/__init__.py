"""The KafkaPixy service: ``service`` converts, ``acks`` and ``offers`` are the rules, the rest drives Kafka."""
