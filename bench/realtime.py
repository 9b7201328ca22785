"""Realtime: trades a second, latency, the table with many markets, start of the driver, and memory.

    .venv/bin/python -m bench.realtime [speed] [latency] [markets] [joined] [start] [memory]
        [--rate 5000] [--markets 600] [--minutes 30]

Prints Markdown. Without a name all parts are measured: speed takes about 12 minutes, latency 4, markets 7, start 5,
joined a quarter of one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.memory import memory
from bench.parts import realtime_joined, realtime_latency, realtime_markets, realtime_memory, realtime_speed
from bench.parts.cpu import cpu_seconds
from tests.rig import report
from tests.rig.report import Row, table
from tests.rig.suite import running_suite

TABLES = ("ohlc", "ohlc,ticks,tickers")
STARTS = 3


def starts(folder: Path) -> str:
    """Return the table of starts of the Spark driver with the candles' table alone and with all three, in turns."""
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


def main() -> int:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="speed, latency, markets, joined, start or memory")
    parser.add_argument("--rate", type=int, default=5_000, help="trades a second of markets")
    parser.add_argument("--markets", type=int, help="number of markets: 500 in markets, 600 in memory")
    parser.add_argument("--minutes", type=int, default=30, help="length of memory")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], str]] = {
        "speed": realtime_speed.run,
        "latency": realtime_latency.run,
        "markets": partial(realtime_markets.run, markets=options.markets or 500, rate=options.rate),
        "joined": realtime_joined.run,
        "start": starts,
        "memory": partial(realtime_memory.run, markets=options.markets or 600, minutes=options.minutes),
    }
    if unknown := [each for each in options.parts if each not in parts]:
        parser.error(f"{unknown[0]} is not one of {', '.join(parts)}")
    print(report.heading("Realtime"), flush=True)
    for part in options.parts or parts:
        with tempfile.TemporaryDirectory() as folder:
            print(parts[part](Path(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
