"""Ways to fetch a cell: the loop of ccxt's tutorials, its own ``paginate``, and a request through the whole suite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.parts.backfill import make_client
from bench.parts.completeness.cells import MINUTE_NS, Cell
from bench.parts.completeness.compare import HANG, QUIET, Row
from bench.parts.completeness.exchange import PAGE
from dexorder import Client
from dexorder.client.inputs import make_request
from dexorder.client.requests import new_request_id
from dexorder.errors import WaitEnded
from dexorder.rows.catalog import CatalogSource
from dexorder_common.model.history import RequestRecord, RequestStatus
from dexorder_common.model.periods import count_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS

MOST_CALLS_A_PAGE = 20
"""A loop that has made so many is running in circles."""
_MS_NS = 1_000_000
_STEP_MS = MINUTE_NS // _MS_NS
Way = Callable[[Any, Cell, list[Any]], Awaitable[None]]


async def tutorial_loop(client: Any, cell: Cell, rows: list[Any]) -> None:
    """Fetch page after page from the last candle on, until one is empty; ``rows`` grows with each page.

    Raises:
        RecursionError: It does not end.
    """
    since_ms, end_ms = cell.span.start_ns // _MS_NS, cell.span.end_ns // _MS_NS
    for _ in range(MOST_CALLS_A_PAGE * pages(cell)):
        if since_ms >= end_ms:
            return
        page = await client.fetch_ohlcv(cell.symbol, "1m", since_ms, PAGE)
        if not page:
            return
        rows += page
        since_ms = page[-1][0] + _STEP_MS
    raise RecursionError


async def paginate(client: Any, cell: Cell, rows: list[Any]) -> None:
    """Fetch the whole range in one call of ccxt."""
    rows += await client.fetch_ohlcv(
        cell.symbol,
        "1m",
        cell.span.start_ns // _MS_NS,
        None,
        {"paginate": True, "until": cell.span.end_ns // _MS_NS - 1, "paginationCalls": pages(cell) + 1},
    )


def pages(cell: Cell) -> int:
    """Return the least number of calls that the range needs."""
    return -(-count_periods(cell.span, 60) // PAGE)


async def run_peer(way: Way, address: str, cell: Cell, deadline_s: float) -> tuple[str, list[Row]]:
    """Run one way; return its end and the caller's rows inside the range."""
    client, raw, end = make_client(address), list[Any](), QUIET
    try:
        await client.load_markets()
        async with asyncio.timeout(deadline_s):
            await way(client, cell, raw)
    except TimeoutError:
        end = HANG
    except RecursionError:
        end = "runs in circles"
    except Exception as error:  # whatever it raises, the caller is told
        end = f"raises {type(error).__name__}"
    finally:
        await client.close()
    return end, [row for row in map(_row, raw) if row[0] is None or cell.span.start_ns <= row[0] < cell.span.end_ns]


def _row(row: Any) -> Row:
    open_ms, *values = row
    return None if open_ms is None else int(open_ms) * _MS_NS, tuple(values)


VALUES = ("open", "high", "low", "close", "volume")


def run_ours(relay: str, cell: Cell, deadline_s: float) -> tuple[str, list[Row], tuple[TimeRange, ...]]:
    """Run a request; return its end, the rows of its range and around it, and the ranges named as missing."""
    with Client(relay) as client:
        request = make_request(new_request_id(), f"{cell.symbol}.SIM", 60, cell.span.start_ns, cell.span.end_ns)
        client.submit(request)
        try:
            record = client.wait(request.request_id, timeout=deadline_s).record
        except WaitEnded:
            client.cancel(request.request_id)
            return HANG, [], ()
        rows = read_rows(client, record, cell.wide)
    return end_of(record, rows), rows, record.missing


def read_rows(client: Client, record: RequestRecord, span: TimeRange) -> list[Row]:
    """Return the ticker's rows of a range, whatever the request's status."""
    answer = CatalogSource(*client.catalog()).find(record)
    since, until = (datetime.fromtimestamp(ns // SECOND_NS, UTC).isoformat() for ns in (span.start_ns, span.end_ns))
    found: Any = answer.table.scan(
        f"ticker = '{record.ticker}' and period_seconds = {record.period_seconds}"
        f" and open_time >= '{since}' and open_time < '{until}'",
        selected_fields=("open_time", *VALUES),
        snapshot_id=answer.snapshot_id,
    ).to_arrow()
    opens = pc.cast(pc.cast(found["open_time"], pa.timestamp("ns", tz="UTC")), pa.int64()).to_pylist()
    values = zip(*(found[name].to_pylist() for name in VALUES), strict=True)
    return list(zip(opens, values, strict=True))


def end_of(record: RequestRecord, rows: list[Row]) -> str:
    """Return the status, or the difference if the table does not hold the announced rows."""
    assert record.status is not None, "an ended request has a status"
    there = sum(record.span.start_ns <= (open_ns or 0) < record.span.end_ns for open_ns, _ in rows)
    if there != record.row_count:
        return f"{record.status}, but {record.row_count:,} rows announced and {there:,} there"
    if record.status is RequestStatus.ERROR and record.missing and str(record.missing[0]) not in record.error_message:
        return f"{record.status}, but its message names no missing range"
    return str(record.status)
