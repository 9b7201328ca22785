"""Benchmarks of the pipeline, each figure with its limit measured in the same run.

    .venv/bin/python -m bench.pipeline [latency] [backfill] [sink] [broker] [cluster] [--small] [--candles N] [--files]

Prints Markdown. Without a name all but ``cluster`` run. ``--small`` only checks that the scripts work. With
``--files`` the simulated exchange has files of whole days, as Binance has; they do not count in its rate.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.parts import backfill, broker, cluster_sink, latency, sink
from bench.parts.sim_markets import write_exchanges
from tests.rig import report
from tests.rig.suite import running_suite

PARTS = ("latency", "backfill", "sink", "broker")
ALONE = "cluster"


def tables(wanted: list[str], folder: Path, small: bool, candles: int, files: bool) -> Iterator[str]:
    """Yield one table for each measurement, as soon as it is complete."""
    if {"latency", "backfill"} & set(wanted):
        exchanges = write_exchanges(folder, {}, files=files)
        with running_suite(folder / "suite", "--exchanges", exchanges) as suite:
            if "latency" in wanted:
                yield latency.measure(suite, 3 if small else 30)
            if "backfill" in wanted:
                yield backfill.measure(suite, candles)
    if "sink" in wanted:
        with running_suite(folder / "source", "--only", "kafka,gateway,udsource") as suite:
            yield sink.measure(suite, 20 if small else 1_000)
    if ALONE in wanted:
        with running_suite(folder / "cluster", "--only", "kafka,gateway,udsource") as suite:
            yield cluster_sink.measure(suite, folder, 20 if small else 1_000)
    if "broker" in wanted:
        yield broker.measure(folder, 200 if small else 5_000)


def main() -> int:
    """Run the measurements and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, ALONE, []], help="which of them; all by default")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--candles", type=int, help="candles of the backfill; 1,000,000, or 20,000 with --small")
    parser.add_argument("--files", action="store_true", help="the exchange has files of whole days")
    options = parser.parse_args()
    candles = options.candles or (20_000 if options.small else 1_000_000)
    print(report.heading("The pipeline beside its limits"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for text in tables(options.parts or list(PARTS), Path(folder), options.small, candles, options.files):
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
