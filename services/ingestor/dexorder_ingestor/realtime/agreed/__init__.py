"""Trades of markets without consecutive numbers: complete where two sources agree."""
