"""Commands for live data: ``realtime``, ``watch``, ``tickers``, ``trigger``."""
