"""What is lost on a bad exchange: ours beside ccxt alone. Parts of `bench.completeness`."""
