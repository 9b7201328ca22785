"""Rules that decide which records of a batch count: only records of dispatches that the relay has issued. Pure.

A producer can write any page to the topic. The id of a dispatch cannot be guessed, and the relay knows for which range
of which series it issued each one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from dexorder_common.kafka.joined_record import records_in
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.page import PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso

if TYPE_CHECKING:
    from dexorder_spark.source.records import Result
    from dexorder_spark.tables.table import PageTable

MAX_AHEAD_NS = 120 * SECOND_NS
"""A page may end this much after the driver's time, as clocks differ."""
Place: TypeAlias = tuple[int, ...]
"""Partition and offset of a record; of one that is joined with others, also its number among them."""


@dataclass(frozen=True)
class RecordRefusal:
    """Reason why a well-formed record does not count.

    Attributes:
        is_issued: Whether the relay knows the dispatch, so that it is told.
    """

    reason: str
    is_issued: bool


def refusal(
    dispatch_id: str,
    series: Series,
    span: TimeRange,
    issued: Mapping[str, IssuedDispatch],
    *,
    is_page: bool,
    now_ns: int,
) -> RecordRefusal | None:
    """Return why a page or a final does not count; None if it does.

    Args:
        issued: The relay's knowledge of the batch's dispatches, by id.
        now_ns: The driver's time.
    """
    dispatch = issued.get(dispatch_id)
    if dispatch is None:
        return RecordRefusal(f"job_id {dispatch_id!r} was not issued by the relay, or too long ago", is_issued=False)
    if not dispatch.covers(series):
        return RecordRefusal(
            f"series {series} is not {dispatch.series}, for which job_id {dispatch_id!r} was issued", True
        )
    if not dispatch.span.contains(span):
        return RecordRefusal(
            f"range {span} is outside {dispatch.span}, for which job_id {dispatch_id!r} was issued", True
        )
    if is_page and span.end_ns > now_ns + MAX_AHEAD_NS:
        return RecordRefusal(f"range {span} ends in the future; it is {iso(now_ns)} now", True)
    return None


class Record(NamedTuple):
    """Well-formed record of a series that its reader wants."""

    table: PageTable
    headers: PageHeaders
    payload: bytes

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
                found.append(Record(table, headers, value))
    return found


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
    except Exception:  # whatever a record's bytes cause
        return None


def counts(record: Record, issued: Mapping[str, IssuedDispatch], *, now_ns: int, history: bool = False) -> bool:
    """Return whether the relay has issued a record's dispatch, for its series and range; arguments as `rows_in`."""
    headers = record.headers
    dispatch = issued.get(headers.dispatch_id)
    if dispatch is None or not (dispatch.is_realtime or history):
        return False
    refused = refusal(headers.dispatch_id, record.series, headers.span, issued, is_page=True, now_ns=now_ns)
    return refused is None
