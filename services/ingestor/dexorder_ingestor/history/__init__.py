"""Historical candles: pages fetched, verified and published for one dispatch."""
