"""Files in the formats of backtesting programs: freqtrade, nautilus_trader and hftbacktest."""
