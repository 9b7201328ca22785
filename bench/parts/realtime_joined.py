"""Processor time of the table's part for a batch of trades: a record for each market, and joined ones. Without Spark.

What the workers do (decode, files) and what the driver does with the control rows (pages, ranges, claims). Processor
time of this process, so other work on the machine hardly changes it. Kafka, udsource and Spark's own work are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dexorder_common.kafka.joined_record import JOINED_HEADERS, TradesRecord, join_records, lane_of
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import claim_rows, join_pages
from dexorder_common.lake.tables import TICKS
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.realtime.trade_batches import MAX_BATCH_NS, tick_of
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.pipeline.controls import LETTERS_KIND, Rules
from dexorder_spark.pipeline.decoded import Decoded
from dexorder_spark.pipeline.files import FileLayout, Stage
from dexorder_spark.pipeline.ranges import KeyRange, overlap, scan_ranges
from dexorder_spark.records.dead_letters import LetterLayout
from dexorder_spark.source.records import RAW
from dexorder_spark.tables.table import ensure_tables
from dexorder_spark.tables.ticks import TRADES
from tests.rig.dispatches import realtime_dispatch_id
from tests.rig.report import Row, table

BATCH_SECONDS = 2
ROUNDS = 5
START_NS = 20_000 * 86_400 * SECOND_NS
LOADS = ((53, 470), (500, 5_000))
"""Markets, and trades a second of all of them."""


class _Control(dict[str, Any]):
    __getattr__ = dict[str, Any].__getitem__


def records(markets: int, rate: int, tick_ns: int) -> list[list[TradesRecord]]:
    """Return the records of each tick of a batch, those of markets without a trade left out."""
    ticks: list[list[TradesRecord]] = []
    number = 0
    for tick in range(BATCH_SECONDS * SECOND_NS // tick_ns):
        found: dict[int, list[pb.Trade]] = {}
        start_ns = START_NS + tick * tick_ns
        for each in range(rate * tick_ns // SECOND_NS):
            number += 1
            time_ns = start_ns + each
            trade = pb.Trade(trade_id=str(number), time_ns=time_ns, price=1.5, amount=0.25, side=pb.Trade.SIDE_BUY)
            found.setdefault(number * 7919 % markets, []).append(trade)
        span = TimeRange(start_ns, start_ns + tick_ns)
        ticks.append([_record(market, tick, span, trades) for market, trades in sorted(found.items())])
    return ticks


def _record(market: int, tick: int, span: TimeRange, trades: Sequence[pb.Trade]) -> TradesRecord:
    ticker = f"COIN{market:03}/USDT.SIM"
    dispatch_id = realtime_dispatch_id(market + 1, ticker)
    headers = PageHeaders(Kind.TRADES, ticker, 0, dispatch_id, tick, span, span.start_ns, trace="0" * 32)
    return TradesRecord(headers, pb.Trades(trades=trades).SerializeToString())


def _joined(tick: Sequence[TradesRecord]) -> list[tuple[bytes, dict[str, str]]]:
    lanes: dict[str, list[TradesRecord]] = {}
    for each in tick:
        lanes.setdefault(lane_of(each.headers.ticker), []).append(each)
    return [(join_records(lane), dict(JOINED_HEADERS)) for lane in lanes.values()]


def raw(given: Sequence[tuple[bytes, dict[str, str]]]) -> pa.RecordBatch:
    """Return records in the columns of ``RAW``."""
    rows = [
        {"payload": value, "key": "k", "headers": list(headers.items()), "event_time": 0, "partition": 0, "offset": n}
        for n, (value, headers) in enumerate(given)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW)


def seconds(stage: Stage, batch: pa.RecordBatch, rows: int) -> tuple[float, float]:
    """Return the smallest processor times of the worker's and of the driver's part."""
    worker, driver = list[float](), list[float]()
    for _ in range(ROUNDS):
        started = time.process_time()
        controls = list(stage.run([batch]))
        worker.append(time.process_time() - started)
        found = [_row(row) for each in controls for row in each.to_pylist()]
        started = time.process_time()
        decoded = Decoded(TRADES, found)
        pages, candidates = decoded.pages(), decoded.candidates()
        spans = decoded.row_ranges(TRADES.tolerance_ns)
        ranges = [KeyRange((pages[place].series.ticker,), span) for place, span in spans.items()]
        scan_ranges(ranges)
        overlap(ranges)
        claim_rows(pages.values(), now_ns=1)
        join_pages(pages.values())
        driver.append(time.process_time() - started)
        if sum(page.rows for page in pages.values()) != rows or len(candidates) != len(pages):
            raise AssertionError("rows are lost")
    return min(worker), min(driver)


def _row(row: dict[str, Any]) -> Any:
    if row["kind"] == LETTERS_KIND:
        raise AssertionError("a record is refused")
    return _Control(row | {"control": _Control(row["control"] or {"part": None})})


def run(folder: Path) -> str:
    """Return the table."""
    catalog = CatalogSettings.local(folder).load()
    ensure_tables(catalog)
    layout = FileLayout.of(TRADES, catalog.load_table(TICKS.name))
    stage = Stage(layout, LetterLayout.of("bench", catalog), Rules(START_NS + 3_600 * SECOND_NS))
    found = []
    for markets, rate in LOADS:
        alone = [(value, headers.encode()) for tick in records(markets, rate, MAX_BATCH_NS) for headers, value in tick]
        ticks = records(markets, rate, tick_of(markets))
        joined = [each for tick in ticks for each in _joined(tick)]
        rows = rate * BATCH_SECONDS
        counts = f"{sum(map(len, ticks)):,} records in {len(joined):,} for {len(alone):,}"
        before, after = (seconds(stage, raw(given), rows) for given in (alone, joined))
        for what, old, new in zip(("decode, files", "driver"), before, after, strict=True):
            found.append(
                Row(
                    f"{markets} markets, {rate:,} trades/s: {what}; {counts}",
                    f"{new * 1e3:.0f} ms",
                    f"{old * 1e3:.0f} ms",
                    f"{new / old:.2f}",
                )
            )
    title = (
        f"Processor time of a batch of {BATCH_SECONDS} s, the least of {ROUNDS}; limit: a record for each market and "
        "tenth of a second"
    )
    return table(title, found)
