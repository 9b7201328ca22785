"""From Kafka to Iceberg through Spark: our source beside Spark's own, and the pipeline's upsert.

    .venv/bin/python -m bench.spark_source [append] [latency] [running] [upsert] [size] [--small]
        [--pages N] [--rounds N] [--runs N] [--rows N,N] [--tasks N] [--partitions N] [--snapshots N] [--tickers N]

append    rows per second of a plain append from a preloaded topic, ours beside Spark's own Kafka source
latency   time from Produce to a visible snapshot of a page of 1,000 rows, plain append, both sources
running   rows per second of a running query through the pipeline's upsert, both sources
upsert    latency through the pipeline, for new ranges and for ranges that the table has
size      the upsert in tables of 1 and 10 million rows, disjoint and overlapping batches of 1,000 and 100,000 rows

Without a name all five run. A record is a page of 1,000 candles, as in the pipeline; the same code decodes the pages of
both sources. The first three need `python -m dexorder.setup fetch spark-kafka` once. Prints Markdown.
``--small`` only shows that the script works.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.parts import pixy_raw, sink, source_processes, spark_append, spark_running, spark_upsert
from bench.parts.spark_rows import Stage
from dexorder.setup.jars import jar_paths
from dexorder_common import logs
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.datasets import CANDLES
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.session import build_session
from tests.rig import report
from tests.rig.kafka import RunningKafka

PARTS = ("append", "latency", "running", "upsert", "size")
BESIDE_KAFKAS = {"append", "latency", "running"}
CATALOG = "plain"


@dataclass(frozen=True)
class Plan:
    """Amount of data and number of repetitions.

    Attributes:
        pages: Pages in the preloaded topic.
        rounds: Repetitions of each side; batches of each kind and size.
        runs: Pages whose latency is measured, on each side and in each of two rounds.
        rows: Sizes of the tables for the upsert.
        tasks: Tasks that run in parallel.
        partitions: Partitions of the topic.
        snapshots: Snapshots that the upsert's tables have at the beginning.
        tickers: Number of tickers in the tables for ``size``.
    """

    pages: int
    rounds: int
    runs: int
    rows: list[int]
    tasks: int = 2
    partitions: int = 4
    snapshots: int = 0
    tickers: int = 20


FULL = Plan(pages=2_400, rounds=5, runs=15, rows=[1_000_000, 10_000_000])
SMALL = Plan(pages=20, rounds=1, runs=2, rows=[600_000])
LATENCY_ROUNDS = 2


def measure(wanted: list[str], plan: Plan, folder: Path) -> Iterator[str]:
    """Yield the result tables, each as soon as it is complete."""
    with ExitStack() as stack:
        broker = RunningKafka(folder / "kafka")
        stack.callback(broker.stop)
        pixy_raw.make_topic(broker.bootstrap, CANDLES.topic, plan.partitions)
        if {"append", "running"} & {*wanted}:
            sink.preload(broker.bootstrap, plan.pages)
        server = stack.enter_context(source_processes.udsource(broker.bootstrap, CANDLES.topic, folder / "source.sock"))
        catalog = CatalogSettings.local(folder, CATALOG)
        catalog.load()
        sets = [*catalog.jar_sets, *(["spark-kafka"] if BESIDE_KAFKAS.intersection(wanted) else [])]
        jars = [str(path) for name in sets for path in jar_paths(name)]
        settings = SparkSettings(listen="127.0.0.1:0", metrics_listen="", master=f"local[{plan.tasks}]")
        session = build_session(settings, catalog, extra={"spark.jars": ",".join(jars)})
        stack.callback(session.stop)
        stage = Stage(session, CATALOG, folder, broker.bootstrap, CANDLES.topic, server.address)
        if "append" in wanted:
            yield spark_append.throughput(stage, plan.pages, plan.rounds)
        if "running" in wanted:
            yield spark_running.rates(stage, plan.pages, plan.rounds)
        if "latency" in wanted:
            yield spark_append.latency(stage, plan.runs, LATENCY_ROUNDS)
        if "upsert" in wanted:
            yield spark_upsert.latency(stage, plan.runs, plan.snapshots)
        for size in plan.rows if "size" in wanted else ():
            yield spark_upsert.in_table(stage, size, plan.rounds, plan.tickers, plan.snapshots)


def main() -> int:
    """Run the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to run; default: all")
    parser.add_argument("--small", action="store_true")
    for name in ("pages", "rounds", "runs", "tasks", "partitions", "snapshots", "tickers"):
        parser.add_argument(f"--{name}", type=int, default=None)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=None)
    options = parser.parse_args()
    base = SMALL if options.small else FULL
    given = {name: getattr(options, name) for name in vars(base)}
    plan = Plan(**{name: getattr(base, name) if value is None else value for name, value in given.items()})
    logs.configure("bench", level="warning")  # the pipeline's log line of each batch is not part of the Markdown
    print(report.heading("From Kafka to Iceberg through Spark"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for text in measure(options.parts or list(PARTS), plan, Path(folder)):
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
