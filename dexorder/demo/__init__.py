"""Demonstration of the whole suite: ``python -m dexorder.demo``."""
