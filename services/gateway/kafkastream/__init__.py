"""dexorder.kafka.v1 on a cluster's clients.

``service`` and ``columns`` convert, ``flow`` has the rules, the streams bring them to the clients.
"""
