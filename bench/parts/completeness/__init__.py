"""Parts of `bench.completeness`: losses on a faulty exchange, dexorder beside ccxt alone."""
