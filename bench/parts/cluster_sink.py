"""(e) A preloaded topic to Iceberg by executors of one core each of a standalone Spark cluster, all on this machine."""

from __future__ import annotations

from pathlib import Path

from bench.parts.sink import preload, rounds
from dexorder_common.model.page import MAX_PAGE_CANDLES
from dexorder_spark.config import SparkSettings
from tests.integration.production.cluster import standalone_cluster
from tests.rig.report import Row, table
from tests.rig.suite import Suite

EXECUTORS = (1, 2, 4)
ROUNDS = 4


def measure(suite: Suite, folder: Path, pages: int) -> str:
    """Run the rounds with each number of executors, and with local tasks; return the best of each."""
    preload(suite.address("kafka"), pages)
    source, total, rows = suite.address("udsource"), pages * MAX_PAGE_CANDLES, list[Row]()
    local = SparkSettings(listen="127.0.0.1:0", metrics_listen="")
    rows.append(_row("local tasks, one a core of the machine", total, *rounds(local, source, ROUNDS)))
    for executors in EXECUTORS:
        place = folder / f"cluster{executors}"
        place.mkdir()
        with standalone_cluster(place, executors) as cluster:
            settings = local.model_copy(update={"master": cluster.master})
            rows.append(_row(f"{executors} executors of one core", total, *rounds(settings, source, ROUNDS)))
    title = f"(e) {total:,} candles in {pages} pages to Iceberg by executors; limit: the same read and decode alone"
    return table(title, rows)


def _row(what: str, total: int, iceberg: list[float], dropped: list[float]) -> Row:
    ours, limit = (total / min(times[1:]) for times in (iceberg, dropped))
    return Row(what, f"{ours:,.0f} rows/s", f"{limit:,.0f} rows/s", f"{ours / limit:.2f}", "")
