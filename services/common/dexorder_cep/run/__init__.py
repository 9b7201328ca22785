"""Plans over rows: streams, matcher, running candles, delivery, the engine. Pure."""
