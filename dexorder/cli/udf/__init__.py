"""Commands for users' functions: ``dexorder udf``."""
