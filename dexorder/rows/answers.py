"""Rows that answer a request: where they are read, their range, and the check of their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dexorder.errors import HistoryMismatch
from dexorder_common.model.datasets import CANDLES
from dexorder_common.model.history import RequestRecord
from dexorder_common.model.time_range import TimeRange

if TYPE_CHECKING:
    from dexorder.rows.table import Rows

TABLE = CANDLES.table
SQLITE = "sqlite:///"
OnNote = Callable[[str], None]
_BOOKKEEPING = ("dispatch", "page")
"""Columns of trades and snapshots that decide which row the table keeps."""


def catalog_is_set(environment: Mapping[str, str]) -> bool:
    """Return whether this machine has settings of a catalog, so that it can read the tables itself."""
    return any(name.upper().startswith("DEXORDER_CATALOG_") for name in environment)


def is_here(properties: Mapping[str, str]) -> bool:
    """Return whether an announced catalog is a file of this machine, like the catalog of a local suite."""
    uri = properties.get("uri", "")
    return uri.startswith(SQLITE) and Path(uri.removeprefix(SQLITE)).is_file()


def without_bookkeeping(rows: Rows) -> Rows:
    """Return rows of a dataset without periods, with the columns that describe them."""
    return rows.select([name for name in rows.column_names if name not in _BOOKKEEPING])


def answered_span(record: RequestRecord) -> TimeRange:
    """Return the range of a request's rows; with a limit it ends after the last candle within the limit."""
    span, end_ns = record.span, record.answered_end_ns
    return span if end_ns is None else TimeRange(span.start_ns, min(end_ns, span.end_ns))


def check_rows(record: RequestRecord, rows: int, distinct: int, snapshot_id: int | None, *, expired: bool) -> None:
    """Raise HistoryMismatch unless there are as many rows as announced, no two of them for one time."""
    if rows == record.row_count and distinct == rows:
        return
    doubled = f", {rows - distinct} of them duplicates," if distinct < rows else ""
    hint = "; the announced snapshot has expired: submit the range as a new request" if expired else ""
    raise HistoryMismatch(
        f"request {record.request_id}: {TABLE} has {rows} rows{doubled} at snapshot {snapshot_id}, "
        f"but {record.row_count} were announced{hint}",
        record,
    )


def note_expired(record: RequestRecord, snapshot_id: int | None, on_note: OnNote) -> None:
    """Say that the announced snapshot has expired, and a later one was read."""
    on_note(
        f"snapshot {record.snapshot_id} of {TABLE} has expired; snapshot {snapshot_id} was read, "
        f"which has as many rows ({record.row_count})"
    )
