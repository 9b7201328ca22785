"""dexorder.kafka.v1: ``service`` converts, ``flow`` has the rules, the streams bring both to a cluster's clients."""
