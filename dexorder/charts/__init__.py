"""Charts of candles: in a terminal, and as a page."""
