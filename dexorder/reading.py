"""A request's rows, read from Iceberg at the snapshot it announced. Blocking; the async client calls it in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.table import DataScan, Table
from sqlalchemy.exc import SQLAlchemyError

from dexorder.errors import CatalogError, HistoryMismatch
from dexorder.iceberg import open_catalog
from services.common.lake.catalog import OHLC_TABLE
from services.common.model.history import RequestRecord
from services.common.model.periods import split_by_periods
from services.common.model.time_range import TimeRange

PIECE_PERIODS = 200_000
"""Periods read at once when rows are streamed: about 20 MB of candles, and few enough scans."""


@dataclass(frozen=True)
class Answer:
    """Where the rows of one ended request are: a table, and the snapshot of it to read.

    Attributes:
        snapshot_id: The announced one, or the current one when that has expired; None while the table has none.
        expired: The announced snapshot is gone.
    """

    table: Table
    record: RequestRecord
    snapshot_id: int | None
    expired: bool

    @property
    def span(self) -> TimeRange:
        """The range the answer covers; with a limit it ends behind the last candle that counts."""
        span, end_ns = self.record.span, self.record.answered_end_ns
        return span if end_ns is None else TimeRange(span.start_ns, min(end_ns, span.end_ns))

    def rows(self) -> pa.Table:
        """All of them, ascending by ``open_time``; HistoryMismatch if they are not as many as announced."""
        rows = self._scan(self.span).to_arrow().sort_by("open_time")
        rows = rows if self.record.limit is None else rows.slice(0, self.record.limit)
        self._check(rows.num_rows)
        return rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same in pieces of at most ``PIECE_PERIODS`` rows, at least one (maybe empty); counted before the first.

        The count reads one column only, so that nothing wrong is handed out before it is known to be wrong.
        """
        there = self._scan(self.span, "open_time").count()
        left = there if self.record.limit is None else min(there, self.record.limit)
        self._check(left)
        for span in split_by_periods(self.span, self.record.period_seconds, PIECE_PERIODS):
            piece = self._scan(span).to_arrow().sort_by("open_time").slice(0, left).combine_chunks()
            if piece.num_rows:
                yield from piece.to_batches()
                left -= piece.num_rows
            if not left:
                break
        if not self.record.row_count:
            yield pa.RecordBatch.from_pylist([], schema=self.table.schema().as_arrow())

    def note(self) -> str:
        """What to tell about the snapshot; empty when the announced one was read."""
        if not self.expired:
            return ""
        return (
            f"snapshot {self.record.snapshot_id} of {OHLC_TABLE} has expired; read at {self.snapshot_id}, "
            f"which holds as many rows ({self.record.row_count})"
        )

    def _scan(self, span: TimeRange, *columns: str) -> DataScan:
        return self.table.scan(_filter(self.record, span), columns or ("*",), snapshot_id=self.snapshot_id)

    def _check(self, rows: int) -> None:
        record = self.record
        if rows == record.row_count:
            return
        hint = "; the announced one has expired: submit the range again as a new request" if self.expired else ""
        raise HistoryMismatch(
            f"request {record.request_id}: {OHLC_TABLE} holds {rows} rows at snapshot {self.snapshot_id}, "
            f"announced were {record.row_count}{hint}",
            record,
        )


def find_answer(name: str, properties: Mapping[str, str], record: RequestRecord) -> Answer:
    """Load the table and choose the snapshot.

    Raises:
        CatalogError: The catalog or the table can't be reached, or is not there.
    """
    try:
        catalog: Any = open_catalog(name, properties)
        with closing(catalog) if hasattr(catalog, "close") else nullcontext():
            table = catalog.load_table(OHLC_TABLE)
    except NoSuchTableError:
        raise CatalogError(f"catalog {name} has no table {OHLC_TABLE}") from None
    except (OSError, SQLAlchemyError, RESTError) as error:
        raise CatalogError(f"catalog {name} can't be reached from here: {error}") from None
    if record.snapshot_id is None or table.snapshot_by_id(record.snapshot_id) is not None:
        return Answer(table, record, record.snapshot_id, False)
    current = table.current_snapshot()
    return Answer(table, record, None if current is None else current.snapshot_id, True)


def read_rows(
    name: str, properties: Mapping[str, str], record: RequestRecord, on_note: Callable[[str], None]
) -> pa.Table:
    """The rows of a request that ended OK, ascending by ``open_time``: all columns of ``trading.ohlc``.

    Args:
        name: Of the catalog.
        properties: Of the catalog, as pyiceberg takes them.
        record: Its ``row_count`` is verified.
        on_note: Told when the announced snapshot has expired and the current one was read.

    Raises:
        CatalogError: The catalog or the table can't be reached or is not there, or its files can't be read.
        HistoryMismatch: Another number of rows than ``record.row_count``.
    """
    answer = find_answer(name, properties, record)
    try:
        rows = answer.rows()
    except OSError as error:
        raise _unreadable(error) from None
    if note := answer.note():
        on_note(note)
    return rows


def read_batches(
    name: str, properties: Mapping[str, str], record: RequestRecord, on_note: Callable[[str], None]
) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in bounded memory; at least one batch, which may be empty."""
    answer = find_answer(name, properties, record)
    try:
        for number, batch in enumerate(answer.batches()):
            if not number and (note := answer.note()):
                on_note(note)
            yield batch
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> CatalogError:
    if isinstance(error, FileNotFoundError):
        return CatalogError(f"a file of {OHLC_TABLE} has vanished, its snapshot expired meanwhile; read again: {error}")
    return CatalogError(f"the files of {OHLC_TABLE} can't be read from here: {error}")


def _filter(record: RequestRecord, span: TimeRange) -> expressions.BooleanExpression:
    made: Any = expressions  # their stubs know only keywords that the documented calls don't use
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    since, until = ((epoch + timedelta(microseconds=t // 1_000)).isoformat() for t in (span.start_ns, span.end_ns))
    return made.And(  # type: ignore[no-any-return]
        made.EqualTo("ticker", record.ticker),
        made.EqualTo("period_seconds", record.period_seconds),
        made.GreaterThanOrEqual("open_time", since),
        made.LessThan("open_time", until),
    )
