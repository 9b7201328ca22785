"""Tables of realtime after hours of small batches: time to read, files, rows of coverage.

    .venv/bin/python -m bench.realtime_tables [--hours 2] [--batch-seconds 2] [--merge-seconds 4]

Commits the batches of those hours one after the other, without waiting: trades of 100 instruments, and the claims of
600 symbols. Merges and the collection of claims run where they run in the driver; snapshots expire by number, as their
age is not that of the hours. After each quarter, when a merge is due, one instrument's day is read, and the same from
a compacted copy of the table. Without Spark: its compaction would only make fewer files. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import claim_rows, collect_claims, join_claims, write_claims
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.commit_state import CommitState
from dexorder_common.lake.tables import COVERAGE, TICKS, rows_in, writable
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.dispatch_id import new_dispatch_id
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance.merge import merge_small_files
from dexorder_spark.tables.table import ensure_tables
from tests.rig import report
from tests.rig.report import Row, table

INSTRUMENTS, TRADES_A_SECOND = 100, 5
SYMBOLS = 600
START_NS = 20_000 * 86_400 * SECOND_NS
KEPT_SNAPSHOTS = 500
"""Snapshots of an hour of merges, and 100 others."""
READS = 9
TICKERS = [f"COIN{n:03}/USDT.SIM" for n in range(INSTRUMENTS)]


@dataclass(frozen=True)
class Plan:
    """Hours to run, and how."""

    hours: float
    batch_seconds: float
    merge_seconds: float

    @property
    def batches(self) -> int:
        """Number of batches."""
        return round(self.hours * 3_600 / self.batch_seconds)


def new_tables(folder: Path) -> Catalog:
    """Return a catalog in a new folder, with the pipeline's tables."""
    folder.mkdir()
    tables = CatalogSettings.local(folder).load()
    ensure_tables(tables)
    return tables


def merge_trades(tables: Catalog) -> int:
    """Merge files as the driver does."""
    limit = MaintenanceSettings().merge_bytes
    return merge_small_files(tables, TICKS, max_bytes=limit, alone=nullcontext)


def commit_batch(
    tables: Catalog, rng: np.random.Generator, number: int, plan: Plan, tickers: Sequence[str] = TICKERS
) -> None:
    """Write and commit the trades of some seconds, a file for each partition."""
    target = tables.load_table(TICKS.name)
    each = round(TRADES_A_SECOND * plan.batch_seconds)
    count = len(tickers) * each
    span_us = int(plan.batch_seconds * 1e6)
    times = np.sort(rng.integers(0, span_us, (len(tickers), each))).ravel() + START_NS // 1_000 + (number - 1) * span_us
    ids = 1_000_000_000 + np.arange(count) % each + number * each
    columns = {
        "ticker": np.repeat(np.array(tickers), each),
        "trade_id": ids.astype("U"),
        "time": times,
        "price": 100 + np.round(rng.normal(0, 1, count), 2),
        "amount": np.round(rng.exponential(1, count), 5),
        "side": np.where(rng.random(count) < 0.5, "buy", "sell"),
        "received_at": times + 20_000,
        "dispatch": np.ones(count, np.int64),
        "revision": np.zeros(count, np.int64),
    }
    rows = pa.table([pa.array(column) for column in columns.values()], names=list(columns)).cast(TICKS.arrow)
    added = list(_dataframe_to_data_files(writable(target.metadata), rows, target.io))
    state = CommitState(offsets={"bench": {0: number}}, resume={"bench": {0: number}})
    commit_files(target, added=added, properties=state.encode())


def expire(target: Table) -> None:
    """Remove the oldest snapshots, without their files."""
    old = [each.snapshot_id for each in target.metadata.snapshots[:-KEPT_SNAPSHOTS]]
    if len(old) >= 50:
        target.maintenance.expire_snapshots().by_ids(old).commit()


def read_seconds(tables: Catalog) -> float:
    """Return the smallest processor time in which one instrument's day is read; other work hardly changes it."""
    day = TimeRange(START_NS, START_NS + 86_400 * SECOND_NS)
    found = list[float]()
    for _ in range(READS):
        started = time.process_time()
        tables.load_table(TICKS.name).scan(rows_in(Series(TICKERS[INSTRUMENTS // 2], dataset=TRADES), day)).to_arrow()
        found.append(time.process_time() - started)
    return min(found)


def compacted(tables: Catalog, folder: Path) -> Catalog:
    """Return a copy of the trades with one file in each partition."""
    copy = new_tables(folder)
    rows = (
        tables.load_table(TICKS.name).scan().to_arrow().sort_by([(name, "ascending") for name in TICKS.order_columns])
    )
    target = copy.load_table(TICKS.name)
    added = list(_dataframe_to_data_files(writable(target.metadata), rows, target.io))
    commit_files(target, added=added)
    return copy


def files(tables: Catalog) -> int:
    """Return the number of data files of trades."""
    return sum(1 for _ in tables.load_table(TICKS.name).scan().plan_files())


def run_trades(folder: Path, plan: Plan) -> Iterator[Row]:
    """Commit the hours and yield a row for each quarter of them."""
    tables = new_tables(folder / "trades")
    rng = np.random.default_rng(1)
    every = round(plan.merge_seconds / plan.batch_seconds) if plan.merge_seconds else 0
    merging = committing = 0.0
    worst = 0
    for number in range(1, plan.batches + 1):
        started = time.process_time()
        commit_batch(tables, rng, number, plan)
        committing += time.process_time() - started
        is_quarter = number % max(1, plan.batches // 4) == 0
        if is_quarter:  # just before a merge
            now, fresh = read_seconds(tables), read_seconds(compacted(tables, folder / f"copy-{number}"))
            what = f"after {number * plan.batch_seconds / 3_600:.2f} h, {files(tables)} files"
            row = Row(what, f"{now * 1e3:.0f} ms", f"{fresh * 1e3:.0f} ms", f"{now / fresh:.2f}", "less than 2")
            print(*row, sep=", ", file=sys.stderr, flush=True)
            yield row
        if every and number % every == 0:
            worst = max(worst, files(tables))
            started = time.process_time()
            merge_trades(tables)
            merging += time.process_time() - started
        if number % 30 == 0:
            expire(tables.load_table(TICKS.name))
    hours = plan.batches * plan.batch_seconds / 3_600
    yield Row("files before a merge, at most", str(worst), "", "", "")
    yield Row(
        "CPU s an hour: merges; writing and committing batches",
        f"{merging / hours:.0f}; {committing / hours:.0f}",
        "",
        "",
        "",
    )


def run_coverage(folder: Path, hours: float, *, merges: bool) -> Row:
    """Claim a minute of trades and of candles of each symbol, minute by minute; return the rows that are left."""
    tables = new_tables(folder / "coverage")
    dispatch = new_dispatch_id(1, "0" * 16)
    series = [Series.decode(f"COIN{n:03}/USDT.SIM", period) for n in range(SYMBOLS) for period in (0, 60)]
    minutes, spent = round(hours * 60), 0.0
    for minute in range(minutes):
        span = TimeRange(START_NS + minute * 60 * SECOND_NS, START_NS + (minute + 1) * 60 * SECOND_NS)
        target = tables.load_table(TICKS.name)
        pages = [PageResult(dispatch, each, span, (), None, span.end_ns, 1) for each in series]
        path = write_claims(target, claim_rows(pages, now_ns=span.end_ns))
        commit_files(target, properties=CommitState(claims=path).encode())
        collect_claims(tables, now_ns=span.end_ns)
        if merges:
            started = time.process_time()
            merge_small_files(
                tables,
                COVERAGE,
                max_bytes=MaintenanceSettings().merge_bytes,
                alone=nullcontext,
                reduce=join_claims,
            )
            spent += time.process_time() - started
    rows = tables.load_table(COVERAGE.name).scan().to_arrow().num_rows
    claimed = minutes * len(series)
    text = f"{rows:,} rows, {spent / hours:.0f} CPU s an hour" if merges else f"{rows:,} rows"
    return Row(
        f"coverage, {claimed:,} claims of {SYMBOLS} symbols in {hours:g} h",
        text,
        f"{claimed:,}",
        f"{rows / claimed:.3f}",
        "",
    )


def measure(folder: Path, plan: Plan) -> Iterator[str]:
    """Yield the tables."""
    rows = list(run_trades(folder, plan))
    title = (
        f"One instrument's day of {INSTRUMENTS}, {INSTRUMENTS * TRADES_A_SECOND} trades/s for {plan.hours:g} h, a batch"
        f" each {plan.batch_seconds:g} s, merges each {plan.merge_seconds:g} s; CPU time; limit: a file a partition"
    )
    yield table(title, rows)
    yield table(
        "trading.coverage; limit: a row for each claim",
        [run_coverage(folder, plan.hours, merges=bool(plan.merge_seconds))],
    )


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--batch-seconds", type=float, default=2.0)
    parser.add_argument("--merge-seconds", type=float, default=MaintenanceSettings().merge_seconds)
    options = parser.parse_args()
    print(report.heading("Tables of realtime"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for text in measure(Path(folder), Plan(options.hours, options.batch_seconds, options.merge_seconds)):
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
