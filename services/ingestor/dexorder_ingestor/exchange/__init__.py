"""Exchanges reached through ccxt: calls, retries, rate limits, validation of answers."""
