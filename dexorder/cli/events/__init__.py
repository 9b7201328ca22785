"""Commands for user events: ``dexorder events``."""
