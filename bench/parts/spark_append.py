"""Plain appends to Iceberg through our source and through Spark's own for Kafka: rows per second and latency."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from typing import Any

from confluent_kafka import Producer

from bench.parts.spark_rows import SIDES, Stage, Watched, append, produce, wait_idle
from dexorder_common.model.page import MAX_PAGE_CANDLES
from tests.rig.oracle import minutes
from tests.rig.report import Row, spread, table

WARM_PAGES = 3
FIRST_MINUTE = -500_000
_DRAIN: dict[str, Any] = {"availableNow": True}
_RUN: dict[str, Any] = {"processingTime": "0 seconds"}


def throughput(stage: Stage, pages: int, rounds: int) -> str:
    """Measure the whole topic in one batch, with a new table each time: one warm-up round, then both sides in turn."""
    seconds: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(1 + rounds):
        for side in list(SIDES)[:: 1 if number % 2 == 0 else -1]:
            seconds[side].append(drain(stage, side, number, pages * MAX_PAGE_CANDLES))
    rows = []
    for name, what in (("addBatch", "the batch itself"), ("triggerExecution", "with planning and Spark's logs")):
        ours, kafka = ([pages * MAX_PAGE_CANDLES / took[name] for took in seconds[side][1:]] for side in SIDES)
        ratio = statistics.median(ours) / statistics.median(kafka)
        rows.append(Row(f"{what}, {rounds} rounds", rates(ours), rates(kafka), f"{ratio:.2f}", "at least 1"))
    title = (
        f"{pages:,} pages to {pages * MAX_PAGE_CANDLES:,} rows, plain append; limit: Spark's own Kafka source, tuned"
    )
    return table(title, rows)


def drain(stage: Stage, side: str, number: int, rows: int) -> dict[str, float]:
    """Return the seconds of a batch with the whole topic, by Spark's steps."""
    name = f"append_{side}_{number}"
    target = stage.make_table(name)
    query = append(SIDES[side](stage, "earliest"), target, stage.folder / f"checkpoint-{name}", _DRAIN)
    query.awaitTermination()
    batches = [each for each in query.recentProgress if each.numInputRows]
    if len(batches) != 1:
        raise AssertionError(f"{side} needed {len(batches)} batches")
    if (found := stage.session.table(target).count()) != rows:
        raise AssertionError(f"{side} wrote {found} of {rows} rows")
    stage.session.sql(f"DROP TABLE {target} PURGE")
    took: Any = batches[0].durationMs
    return {step: millis / 1_000 for step, millis in took.items()}


def rates(values: list[float]) -> str:
    """Return millions of rows per second, the median first."""
    each = ", ".join(f"{value / 1e6:.2f}" for value in values)
    return f"{statistics.median(values) / 1e6:.2f} M rows/s ({each})"


def latency(stage: Stage, runs: int, rounds: int) -> str:
    """Measure a page of 1,000 rows from Produce to the table's new snapshot, in a warm query; both sides in turn."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for side in list(SIDES)[:: 1 if number % 2 == 0 else -1]:
            seconds[side] += warm_query(stage, side, number, runs)
    ours, kafka = (seconds[side] for side in SIDES)
    ratio = statistics.median(ours) / statistics.median(kafka)
    row = Row(
        f"{len(ours)} pages of {MAX_PAGE_CANDLES:,} rows, produced one at a time",
        spread(ours),
        spread(kafka),
        f"{ratio:.2f}",
        "at most 1",
    )
    return table("Produce to visible snapshot, plain append; limit: Spark's own Kafka source, tuned", [row])


def warm_query(stage: Stage, side: str, number: int, runs: int) -> list[float]:
    """Return the seconds of each page of one query except the first few."""
    name = f"latency_{side}_{number}"
    target = stage.make_table(name)
    query = append(SIDES[side](stage, "latest"), target, stage.folder / f"checkpoint-{name}", _RUN)
    watched = Watched(stage.folder / "catalog.db", name)
    producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0})
    jitter = random.Random(number)
    seconds = []
    try:
        for page in range(WARM_PAGES + runs):
            wait_idle(query)
            time.sleep(jitter.uniform(0, 0.1))  # else all would fall at the same moment between two polls of the source
            span = minutes(FIRST_MINUTE + page * MAX_PAGE_CANDLES, MAX_PAGE_CANDLES)

            def act(span: Any = span) -> None:
                produce(producer, stage.topic, span)

            seconds.append(watched.seconds_until_snapshot(query, act))
    finally:
        query.stop()
    return seconds[WARM_PAGES:]
