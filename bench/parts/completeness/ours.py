"""A request through the whole suite, and its rows in Iceberg at the announced snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.parts.completeness.cells import Cell
from bench.parts.completeness.compare import HANG, Row
from dexorder import Client
from dexorder.client.inputs import make_request
from dexorder.client.requests import new_request_id
from dexorder.errors import WaitEnded
from dexorder.rows.catalog import CatalogSource
from dexorder_common.model.history import RequestRecord, RequestStatus
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS

VALUES = ("open", "high", "low", "close", "volume")


def run(relay: str, cell: Cell, deadline_s: float) -> tuple[str, list[Row], tuple[TimeRange, ...]]:
    """Run a request; return its end, the rows of its range and around it, and the ranges named as missing."""
    with Client(relay) as client:
        request = make_request(new_request_id(), f"{cell.symbol}.SIM", 60, cell.span.start_ns, cell.span.end_ns)
        client.submit(request)
        try:
            record = client.wait(request.request_id, timeout=deadline_s).record
        except WaitEnded:
            client.cancel(request.request_id)
            return HANG, [], ()
        rows = read(client, record, cell.wide)
    return end_of(record, rows), rows, record.missing


def read(client: Client, record: RequestRecord, span: TimeRange) -> list[Row]:
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
