"""Reads the rows of a request from Iceberg with pyiceberg. Blocking; the async client calls it in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from dexorder.errors import CatalogError, HistoryMismatch
from dexorder.records import RequestRecord
from services.common.catalog import OHLC_TABLE, CatalogSettings
from services.common.market import TimeRange

_SQLITE = "sqlite:///"


def catalog_properties(announced_name: str, announced: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Name and properties to use: what the relay announced, with what ``DEXORDER_CATALOG_<NAME>`` sets instead."""
    own = CatalogSettings()
    given = {field: getattr(own, field) for field in own.model_fields_set}
    name = given.pop("name", announced_name)
    return name, {**announced, **given}


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open it for reading.

    Raises:
        CatalogError: Its SQLite file is not on this machine (opening would make an empty one).
    """
    uri = properties.get("uri", "")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).is_file():
        raise CatalogError(
            f"the catalog {uri} is not on this machine; set DEXORDER_CATALOG_URI to where it can be reached"
        )
    return load_catalog(name, **properties)


def read_rows(name: str, properties: Mapping[str, str], record: RequestRecord) -> pa.Table:
    """The rows of an ended request at the snapshot it announced, ascending by ``open_time``.

    Returns:
        All columns of ``trading.ohlc``; ``open_time`` is timestamp[us, UTC].

    Raises:
        CatalogError: The catalog or the table is not there, or the snapshot has expired.
        HistoryMismatch: Another number of rows than ``record.row_count``.
    """
    catalog = open_catalog(name, properties)
    if not hasattr(catalog, "close"):
        return _scan(catalog, record)
    with closing(catalog):
        return _scan(catalog, record)


def _scan(catalog: Catalog, record: RequestRecord) -> pa.Table:
    try:
        table = catalog.load_table(OHLC_TABLE)
    except NoSuchTableError:
        raise CatalogError(f"catalog {catalog.name} has no table {OHLC_TABLE}") from None
    if record.snapshot_id is not None and table.snapshot_by_id(record.snapshot_id) is None:
        raise CatalogError(f"snapshot {record.snapshot_id} of {OHLC_TABLE} has expired; submit the request again")
    rows = table.scan(row_filter=_filter(record), snapshot_id=record.snapshot_id).to_arrow().sort_by("open_time")
    if record.limit is not None:
        rows = rows.slice(0, record.limit)
    if rows.num_rows != record.row_count:
        raise HistoryMismatch(
            f"request {record.request_id}: {OHLC_TABLE} holds {rows.num_rows} rows at snapshot {record.snapshot_id}, "
            f"announced were {record.row_count}",
            record,
        )
    return rows


def _filter(record: RequestRecord) -> expressions.BooleanExpression:
    made: Any = expressions  # their stubs know only keywords that the documented calls don't use
    since, until = _bounds(record.span)
    return expressions.And(
        made.EqualTo("ticker", record.ticker),
        made.EqualTo("period_seconds", record.period_seconds),
        made.GreaterThanOrEqual("open_time", since),
        made.LessThan("open_time", until),
    )


def _bounds(span: TimeRange) -> tuple[str, str]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    start, end = (epoch + timedelta(microseconds=t // 1_000) for t in (span.start_ns, span.end_ns))
    return start.isoformat(), end.isoformat()
