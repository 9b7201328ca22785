"""Records of the topics that triggers and UDFs read: records of wanted series, joined or not, and the rows that count.

Other records are left out here; the table's query keeps them as dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from dexorder_common.kafka.joined_record import records_in
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.page import PageHeaders
from dexorder_spark.records.admission import refusal

if TYPE_CHECKING:
    from dexorder_spark.source.records import Result
    from dexorder_spark.tables.table import PageTable


class Record(NamedTuple):
    """Well-formed record of a series that its reader wants; it was written before ``stamp_ns``."""

    table: PageTable
    headers: PageHeaders
    payload: bytes
    stamp_ns: int

    @property
    def series(self) -> Series:
        """The series of its rows."""
        return self.table.series_of(self.headers)


def select(table: PageTable, results: Iterable[Result], wants: Callable[[Series], bool]) -> list[Record]:
    """Return the records of wanted series that may have rows; one that is malformed is left to the table's query."""
    found = []
    for each in results:
        for headers, value in records_in(each.headers, each.payload):
            try:
                Instrument.parse(headers.ticker)
                table.check(headers)
                number_of(headers.dispatch_id)
            except InvalidRequest:
                continue
            if headers.kind is table.kind and wants(table.series_of(headers)):
                found.append(Record(table, headers, value, stamp_of(each, headers)))
    return found


def stamp_of(result: Result, headers: PageHeaders) -> int:
    """Return the end of the millisecond in which a record was written; its producer's time if the source tells none."""
    if not result.HasField("event_time"):
        return headers.fetched_ns
    return result.event_time.ToMilliseconds() * 1_000_000 + 999_999


def rows_in(
    record: Record, issued: Mapping[str, IssuedDispatch], *, now_ns: int, history: bool = False
) -> pa.RecordBatch | None:
    """Return the rows of a record that counts; None for another one, which the table's query keeps as a dead letter.

    Args:
        issued: The relay's knowledge of the record's dispatch.
        now_ns: Time of this process.
        history: Whether records of dispatches that are not realtime ones count too.
    """
    if not counts(record, issued, now_ns=now_ns, history=history):
        return None
    try:
        return record.table.decode(record.headers, record.payload)
    except Exception:  # each exception that a record's bytes cause
        return None


def counts(record: Record, issued: Mapping[str, IssuedDispatch], *, now_ns: int, history: bool = False) -> bool:
    """Return whether the relay has issued a record's dispatch, for its series and range; arguments as `rows_in`."""
    headers = record.headers
    dispatch = issued.get(headers.dispatch_id)
    if dispatch is None or not (dispatch.is_realtime or history):
        return False
    refused = refusal(headers.dispatch_id, record.series, headers.span, issued, is_page=True, now_ns=now_ns)
    return refused is None
