"""Recorded candles with real holes, which the simulated exchange serves."""

from __future__ import annotations

import random

import pyarrow as pa


def recorded() -> pa.Table:
    """Return a day and a half of minute candles of which about 8 % are missing, 60 of them in a row."""
    generator = random.Random(7)
    times = [1_704_067_200_000 + 60_000 * i for i in range(2_160) if generator.random() > 0.05 and not 700 <= i < 760]
    prices = [100 + generator.random() for _ in times]
    return pa.table(
        {
            "timestamp": times,
            "open": prices,
            "high": [p + 1 for p in prices],
            "low": [p - 1 for p in prices],
            "close": prices,
            "volume": [generator.random() for _ in times],
        }
    )
