"""Recorded one-minute candles through the whole suite, compared row by row with the table.

    .venv/bin/python -m bench.real_input FILE.parquet [--symbol BTC/USDT] [--keep DIR]
    .venv/bin/python -m bench.real_input DIR [--only NAME,...]

The file (columns timestamp [ms], open, high, low, close, volume) is served by the simulated exchange, requested for the
range from its first day to the end of its last, and compared with the Iceberg table. Prints Markdown; exit code 0 only
when table, notification and record are all as the file says.

With a folder, each period of each file below ``DIR/ohlcv`` is fetched without the suite, in virtual time, and compared
row by row; ``--only`` selects files by a part of their names. See `bench.parts.real_files`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from bench.parts import real_files
from bench.parts.cpu import all_cpu_seconds
from dexorder import Client
from dexorder.client.inputs import make_request
from dexorder.client.requests import Ended
from dexorder_common.model.periods import count_periods, floor_to_grid
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.rig import report
from tests.rig.oracle import VALUES
from tests.rig.suite import Suite, running_suite

DAY_SECONDS = 86_400
STAGES = (
    ("exchange: calls", "ingestor", "dexorder_ingestor_calls_total"),
    ("exchange: s in calls, throttle included, all slots", "ingestor", "dexorder_ingestor_call_seconds_sum"),
    ("gateway and relay: s in Produce and ReportPage, all slots", "ingestor", "dexorder_ingestor_publish_seconds_sum"),
    ("pages acknowledged by Kafka", "ingestor", "dexorder_ingestor_pages_total"),
    ("Spark: batches", "spark", "dexorder_spark_batches_total"),
    ("Spark: s in all steps of the batches", "spark", "dexorder_spark_step_seconds_sum"),
    ("Spark: s until decoded", "spark", 'dexorder_spark_step_seconds_sum{step="decode",table="trading.ohlc"}'),
    ("Spark: s writing rows", "spark", 'dexorder_spark_step_seconds_sum{step="write",table="trading.ohlc"}'),
    ("Spark: s reporting to the relay", "spark", 'dexorder_spark_step_seconds_sum{step="report",table="trading.ohlc"}'),
    ("Spark: s writing coverage", "spark", 'dexorder_spark_step_seconds_sum{step="coverage",table="trading.ohlc"}'),
)


@dataclass(frozen=True)
class Answer:
    """Answer of one request, and the times of its two halves."""

    ended: Ended
    rows: pa.Table
    wait_seconds: float
    read_seconds: float


def request(suite: Suite, symbol: str, span: TimeRange) -> Answer:
    """Submit, wait for the notification, read the rows at its snapshot."""
    with Client(suite.relay) as client:
        wanted = make_request(uuid.uuid4().hex, f"{symbol}.SIM", 60, span.start_ns, span.end_ns)
        started = time.monotonic()
        client.submit(wanted)
        ended = client.wait(wanted.request_id, timeout=900)
        waited = time.monotonic()
        rows = client.read(ended).to_arrow()
        return Answer(ended, rows, waited - started, time.monotonic() - waited)


def whole_days(times_ms: Any) -> TimeRange:
    """Return the range from the day of the first candle to the end of the day of the last."""
    first, last = pc.min(times_ms).as_py() * 1_000_000, pc.max(times_ms).as_py() * 1_000_000
    return TimeRange(floor_to_grid(first, DAY_SECONDS), floor_to_grid(last, DAY_SECONDS) + DAY_SECONDS * SECOND_NS)


def differences(rows: pa.Table, expected: pa.Table) -> list[str]:
    """Return the differences between table and file; empty if they are equal."""
    times = pc.cast(rows["open_time"], pa.int64())
    if len(rows) != len(expected):
        return [f"{len(rows)} rows where the file has {len(expected)}"]
    if times.combine_chunks() != pc.multiply(expected["timestamp"].combine_chunks(), 1_000):
        return ["open times differ"]
    return [f"{n} differs" for n in VALUES if rows[n].combine_chunks() != expected[n].combine_chunks()]


def run(suite: Suite, symbol: str, expected: pa.Table) -> tuple[list[tuple[str, str]], list[str]]:
    """Request the file's range twice; return the figures and the differences."""
    span = whole_days(expected["timestamp"])
    periods = count_periods(span, 60)
    before = all_cpu_seconds(suite)
    first = request(suite, symbol, span)
    cpu = {part: seconds - before[part] for part, seconds in all_cpu_seconds(suite).items()}
    stages = [(title, suite.metric(part, name)) for title, part, name in STAGES]
    again = request(suite, symbol, span)
    record, notification = first.ended.record, first.ended.notification
    problems = differences(first.rows, expected) + differences(suite.rows(f"{symbol}.SIM", 60, span), expected)
    for what, value, wanted in (
        ("status", notification.status, "OK"),
        ("row_count", notification.row_count, len(expected)),
        ("verified empty", record.empty_periods, periods - len(expected)),
        ("row_count again", again.ended.notification.row_count, len(expected)),
    ):
        problems += [] if value == wanted else [f"{what} is {value}, not {wanted}"]
    figures = [
        ("range", str(span)),
        ("periods", f"{periods:,}"),
        ("rows in the file", f"{len(expected):,}"),
        ("rows read at the notified snapshot", f"{len(first.rows):,}"),
        ("notification", f"{notification.status}, row_count {notification.row_count:,}"),
        ("periods verified empty, in the request's record", f"{record.empty_periods:,}"),
        ("submit to notification, s", f"{first.wait_seconds:.1f}"),
        ("candles a second, submit to notification", f"{len(expected) / first.wait_seconds:,.0f}"),
        ("reading the rows from Iceberg, s", f"{first.read_seconds:.1f}"),
        ("the same request again, submit to notification, s", f"{again.wait_seconds:.2f}"),
        ("slots", "4 (the shipped file `sim`)"),
        ("throttle", "ccxt's own for binance, 20 ms a klines call"),
        *((title, f"{value:,.1f}") for title, value in stages),
        *((f"CPU of {part} during the request, s", f"{value:.1f}") for part, value in cpu.items()),
    ]
    return figures, problems


def all_files(data: Path, only: list[str]) -> int:
    """Fetch every period of the files below a folder and print the table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print(f"{report.heading('Real candles of several files and periods')}\n{real_files.ABOUT}", flush=True)
    results = []
    for file in real_files.files_of(data):
        if any(part in str(file) for part in only):
            for result in real_files.measure(file, data):
                results.append(result)
                print(f"{result.file} {result.period}: {'; '.join(result.problems) or 'equal'}", file=sys.stderr)
    print(real_files.files_table(results))
    return int(any(result.problems for result in results))


def main() -> int:
    """Run once and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="a file of one-minute candles, or the folder with all files")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""], help="parts of files' names")
    parser.add_argument("--symbol", default="BTC/USDT")
    parser.add_argument("--keep", type=Path, help="folder for the suite's state; a temporary one by default")
    options = parser.parse_args()
    if options.file.is_dir():
        return all_files(options.file, options.only)
    expected = pq.read_table(options.file).sort_by("timestamp")
    with tempfile.TemporaryDirectory() as scratch:
        directory = (options.keep or Path(scratch) / "state").resolve()
        with running_suite(directory, "--recorded", f"{options.file.resolve()}={options.symbol}") as suite:
            figures, problems = run(suite, options.symbol, expected)
    rows = (*figures, ("problems", "; ".join(problems) or "none: row for row, value for value"))
    print(report.heading("Real candles through the whole suite"))
    print(f"File `{options.file.name}`.\n\n{report.markdown(('what', 'figure'), rows)}", end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
