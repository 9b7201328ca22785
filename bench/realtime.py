"""Realtime: trades a second, latency, start of the driver, and memory with many markets.

    .venv/bin/python -m bench.realtime [speed] [latency] [start] [memory] [--markets 600] [--minutes 30]

Prints Markdown. Without a name all parts are measured: speed takes about 12 minutes, latency 4, start 5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.parts import realtime_latency, realtime_memory, realtime_speed, realtime_start
from tests.rig import report


def main() -> int:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="speed, latency, start or memory")
    parser.add_argument("--markets", type=int, default=600, help="markets in memory")
    parser.add_argument("--minutes", type=int, default=30, help="length of memory")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], str]] = {
        "speed": realtime_speed.run,
        "latency": realtime_latency.run,
        "start": realtime_start.run,
        "memory": partial(realtime_memory.run, markets=options.markets, minutes=options.minutes),
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
