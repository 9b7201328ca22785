"""Start of the Spark driver with the candles' table alone and with all three."""

from __future__ import annotations

import time
from pathlib import Path

from bench.memory import memory
from bench.parts.cpu import cpu_seconds
from tests.rig.report import Row, table
from tests.rig.suite import running_suite

TABLES = ("ohlc", "ohlc,ticks,tickers")
STARTS = 3


def run(folder: Path) -> str:
    """Return the table; starts with one and with three tables take turns."""
    found: dict[str, list[tuple[float, float, float]]] = {tables: [] for tables in TABLES}
    for number in range(STARTS):
        for tables in TABLES:
            began_s = time.monotonic()
            with running_suite(folder / f"{number}-{len(tables)}", DEXORDER_SPARK_TABLES=tables) as suite:
                ready_s, cpu_s = time.monotonic() - began_s, cpu_seconds(suite, "spark")
                mib = sum(each for part, each in memory(suite).items() if part.startswith("spark"))
            found[tables].append((ready_s, cpu_s, mib))
    one, three = (min(found[tables]) for tables in TABLES)
    names = ("suite ready", "s"), ("processor time of Spark until then", "s"), ("memory of Spark then", "MiB")
    rows = [
        Row(what, f"{ours:.1f} {unit}", f"{limit:.1f} {unit}", f"{ours / limit:.2f}")
        for (what, unit), ours, limit in zip(names, three, one, strict=True)
    ]
    return table(f"Start with three tables, the fastest of {STARTS}; limit: with the candles' alone", rows)
