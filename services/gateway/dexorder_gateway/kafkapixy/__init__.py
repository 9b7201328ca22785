"""The KafkaPixy service: rules of delivery and acks, Kafka's clients, and Kafka-Pixy's configuration file."""
