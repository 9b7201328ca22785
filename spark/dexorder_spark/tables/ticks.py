"""Trades as a table: decoding and validation of a record of trades.

A record is good if each trade has an id, a time that is not after the record's span, a price above 0 and an amount that
is not below 0. Trades may be older than the span: they have come late. Of a trade that comes again, in the record or
in another one, the first copy is kept, unless a later one has a larger revision: the exchange has corrected it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dexorder_common.lake.tables import TICKS
from dexorder_common.model import datasets
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import MAX_RECORD_TRADES, MAX_TRADE_ID_LENGTH, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.tables.columns import (
    Column,
    Counts,
    MessageColumns,
    check_ends,
    check_texts,
    check_times,
    check_without_period,
    microseconds,
    refuse_first,
    repeated,
)
from dexorder_spark.tables.table import SAMPLE_DISPATCH, SAMPLE_TICKER, PageTable

TOLERANCE_NS = SECOND_NS
"""A trade of one id may have times that differ by this much: sockets and REST of an exchange round them differently."""
_SIDES = pa.array([None, "buy", "sell"], pa.string())
_FIELDS: dict[str, pa.DataType] = {
    "trade_id": pa.string(),
    "time_ns": pa.uint64(),
    "price": pa.float64(),
    "amount": pa.float64(),
    "side": pa.int32(),
    "ticker": pa.string(),
    "received_ns": pa.uint64(),
    "refilled": pa.bool_(),
    "revision": pa.uint64(),
}
decode_trades = MessageColumns(pb.Trades, repeated("trades", _FIELDS), "the value of {size} bytes is not a Trades")


def decode_page(headers: PageHeaders, payload: bytes) -> pa.RecordBatch:
    """Return the trades of a good record; else InvalidRequest names the first trade at fault."""
    rows, _ = _decode([headers], [payload])
    ids: Any = rows.column("trade_id").to_pylist()
    if len({*ids}) < len(ids):
        return _by_time(_first_copies(rows, ids))
    times_us = rows.column("time").view(pa.int64()).to_numpy()
    return rows if (times_us[1:] > times_us[:-1]).all() else _by_time(rows)


def decode_joined(heads: Sequence[PageHeaders], payloads: Sequence[bytes]) -> tuple[pa.RecordBatch, Counts]:
    """Return the trades of good records, record after record, and the number of trades of each.

    Raises:
        InvalidRequest: A record is not good, or has copies of a trade. It does not say which: decode them one by one.
    """
    rows, counts = _decode(heads, payloads)
    ids: Any = rows.column("trade_id").to_pylist()
    if len({*ids}) < len(ids) and len({*zip(np.repeat(np.arange(len(counts)), counts), ids, strict=True)}) < len(ids):
        raise InvalidRequest("a record has copies of a trade")
    return rows, counts


def _decode(heads: Sequence[PageHeaders], payloads: Sequence[bytes]) -> tuple[pa.RecordBatch, Counts]:
    columns, counts = decode_trades.rows(payloads, "trades", MAX_RECORD_TRADES)
    times_ns, received_ns = columns["time_ns"].to_numpy(), columns["received_ns"].to_numpy()
    of_record = np.repeat(np.arange(len(counts)), counts)
    ends_ns = np.array([headers.span.end_ns for headers in heads], np.uint64)[of_record]
    check_texts("trade", columns["trade_id"].to_pylist(), "trade_id", MAX_TRADE_ID_LENGTH)
    check_ends("trade", times_ns, "time_ns", 1, ends_ns)
    check_times("trade", received_ns, "received_ns", 0, MAX_TIME_NS)
    revisions = columns["revision"].to_numpy()
    check_times("trade", revisions, "revision", 0, MAX_TIME_NS)
    tickers = pa.array([headers.ticker for headers in heads], pa.string()).take(of_record)
    _check_values(tickers, columns)
    rows = pa.record_batch(
        [
            tickers,
            columns["trade_id"],
            microseconds(times_ns),
            columns["price"],
            columns["amount"],
            _SIDES.take(columns["side"]),
            microseconds(received_ns),
            pa.array(np.array([headers.dispatch for headers in heads], np.int64)[of_record]),
            pa.array(revisions.astype(np.int64), pa.int64(), mask=revisions == 0),
        ],
        schema=TICKS.arrow,
    )
    return rows, counts


def _check_values(tickers: Column, columns: dict[str, Column]) -> None:
    price, amount, side = (columns[name].to_numpy() for name in ("price", "amount", "side"))
    refuse_first("trade", ~np.isfinite(price), "has a price that is not a number")
    refuse_first("trade", ~np.isfinite(amount), "has an amount that is not a number")
    refuse_first("trade", price <= 0, "has a price of 0 or below")
    refuse_first("trade", amount < 0, "has an amount below 0")
    refuse_first("trade", (side < 0) | (side >= len(_SIDES)), "has a side that is none of buy, sell and unspecified")
    wanted = tickers.to_pylist()
    others = [each not in ("", own) for each, own in zip(columns["ticker"].to_pylist(), wanted, strict=True)]
    if any(others):
        refuse_first("trade", others, f"is of another ticker than {wanted[others.index(True)]}")


def _first_copies(rows: pa.RecordBatch, ids: Sequence[str]) -> pa.RecordBatch:
    """Return of each id only the first row of the largest revision.

    Raises:
        InvalidRequest: Copies of one revision differ in price, amount or side.
    """
    first: dict[tuple[str, int], int] = {}
    best: dict[str, int] = {}
    values = list(zip(*(rows.column(name).to_pylist() for name in ("price", "amount", "side")), strict=True))
    revisions = [each or 0 for each in rows.column("revision").to_pylist()]
    for place, (trade_id, revision) in enumerate(zip(ids, revisions, strict=True)):
        copy = first.setdefault((trade_id, revision), place)
        if values[copy] != values[place]:
            raise InvalidRequest(f"trade {place} differs from trade {copy}, which has the same id")
        if revision > revisions[best.setdefault(trade_id, place)]:
            best[trade_id] = place
    return rows.take(pa.array([*best.values()]))


def _by_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pc.sort_indices(rows, sort_keys=[("time", "ascending"), ("trade_id", "ascending")]))


def sample_page() -> tuple[PageHeaders, bytes]:
    """Return a good record of an invented ticker."""
    trades = [
        pb.Trade(trade_id=str(n), time_ns=n, price=1.0, amount=1.0, side=pb.Trade.SIDE_BUY) for n in range(1, 501)
    ]
    headers = PageHeaders(Kind.TRADES, SAMPLE_TICKER, 0, SAMPLE_DISPATCH, 0, TimeRange(0, SECOND_NS), 1)
    return headers, pb.Trades(trades=trades).SerializeToString()


TRADES = PageTable(
    TICKS,
    datasets.TRADES,
    check=partial(check_without_period, what="a record of trades"),
    decode=decode_page,
    decode_joined=decode_joined,
    sample=sample_page,
    kind=Kind.TRADES,
    tolerance_ns=TOLERANCE_NS,
    has_finals=False,
    joins_pages=True,
    pages_per_task=200,
)
