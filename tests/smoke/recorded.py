"""Recorded candles with true holes, for the simulated exchange to serve."""

from __future__ import annotations

import random

import pyarrow as pa


def recorded() -> pa.Table:
    """A day and a half of minutes of which about 8 % are truly missing, some of them in a row."""
    dice = random.Random(7)
    times = [1_704_067_200_000 + 60_000 * i for i in range(2_160) if dice.random() > 0.05 and not 700 <= i < 760]
    prices = [100 + dice.random() for _ in times]
    return pa.table(
        {
            "timestamp": times,
            "open": prices,
            "high": [p + 1 for p in prices],
            "low": [p - 1 for p in prices],
            "close": prices,
            "volume": [dice.random() for _ in times],
        }
    )
