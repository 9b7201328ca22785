"""The whole suite as processes."""
