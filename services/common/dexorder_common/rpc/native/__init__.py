"""gRPC servers on HTTP/2 sessions of `dexorder_http2`; README.md has the design."""
