"""The dexorder.kafka.v1 service: produce and consume streams over the clients of a cluster."""
