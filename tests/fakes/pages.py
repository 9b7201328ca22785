"""Pages and final records as the ingestor writes them, for the pipeline's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyiceberg.catalog import Catalog

from dexorder_common.kafka.page_record import final_value, page_value
from dexorder_common.lake.commit import append_rows
from dexorder_common.lake.coverage import CoverageRow, encode_coverage
from dexorder_common.lake.tables import COVERAGE
from dexorder_common.model.history import PageResult
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, parse_time
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_spark.source.records import RAW
from tests.rig import dispatches

MINUTE_NS = 60 * SECOND_NS
DAY = parse_time("2024-01-31T23:30:00Z")  # pages of an hour from here span two months
TICKER = "BTC/USDT.BINANCE"
Record = tuple[bytes, dict[str, str]]


def dispatch_id(number: int, ticker: str = TICKER) -> str:
    """Return the id of a dispatch; always the same one for a number."""
    return dispatches.dispatch_id(number, ticker)


def raw(*records: Record, partition: int = 0) -> pa.RecordBatch:
    """Return records as the source gives them, with their positions as offsets."""
    rows = [
        {"payload": p, "key": "k", "headers": list(h.items()), "event_time": 0, "partition": partition, "offset": n}
        for n, (p, h) in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW)


def span(first: int, count: int) -> TimeRange:
    return TimeRange(DAY + first * MINUTE_NS, DAY + (first + count) * MINUTE_NS)


def candle(minute: int, price: float = 100.0) -> Candle:
    return Candle(DAY + minute * MINUTE_NS, price, price + 2, price - 1, price + 1, 3.5, 350.0, 7)


def control(
    first: int,
    count: int,
    *,
    kind: Kind = Kind.PAGE,
    job: int = 1,
    page: int = 0,
    ticker: str = TICKER,
    fetched_s: int = 1_700_000_000,
    empty: tuple[TimeRange, ...] = (),
) -> PageHeaders:
    """Return the headers of a page of the dispatch with the number ``job``."""
    made_by, fetched_ns = dispatch_id(job, ticker), fetched_s * SECOND_NS
    return PageHeaders(kind, ticker, 60, made_by, page, span(first, count), fetched_ns, empty, "trace")


def page(head: PageHeaders, price: float = 100.0) -> Record:
    """Return a good page of the headers' span: a candle for each minute that is not verified empty."""
    minutes = range((head.span.start_ns - DAY) // MINUTE_NS, (head.span.end_ns - DAY) // MINUTE_NS)
    rows = [candle(m, price) for m in minutes if not any(r.contains(span(m, 1)) for r in head.empty)]
    return page_value("request-1", rows), head.encode()


def final(
    head: PageHeaders, total: int, status: pb.DataResponse.ResponseStatus.ValueType = pb.DataResponse.OK
) -> Record:
    return final_value("request-1", status, total), replace(head, kind=Kind.FINAL).encode()


def append_coverage(catalog: Catalog, pages: Sequence[PageResult], *, now_ns: int) -> int:
    """Append a row of ``trading.coverage`` for each page, as releases did that had no claims; return their number."""
    rows = [
        encode_coverage(
            CoverageRow(p.series, p.span, p.dispatch, p.fetched_ns, p.empty, now_ns, p.rows, evidence="page")
        )
        for p in pages
    ]
    append_rows(catalog.load_table(COVERAGE.name), pa.Table.from_pylist(rows, schema=COVERAGE.arrow))
    return len(rows)
