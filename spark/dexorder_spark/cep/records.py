"""Records of the topics as rows of the engine: which ones count, and their rows. No I/O and no clock.

A record counts only if the relay has issued its dispatch, as for the tables, and only if that dispatch is a realtime
one: candles and trades that a request for history brings, and candles that replace closed ones, never fire a trigger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dexorder_common.lake.market_rows import ROW_COLUMNS, Row, as_rows
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import PageHeaders
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.records.admission import refusal
from dexorder_spark.source.records import Result
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import PageTable
from dexorder_spark.tables.ticks import TRADES

TABLES: Mapping[str, PageTable] = {each.topic: each for each in (CANDLES, TRADES)}
REPEATED_NS = SECOND_NS
"""Trades that are younger than the newest one minus this are told from their repetitions by their ids. Older ones are
late for every trigger that waits no longer for late rows."""


@dataclass(frozen=True, slots=True)
class Record:
    """Realtime record of a series that triggers watch."""

    table: PageTable
    headers: PageHeaders
    payload: bytes

    @property
    def series(self) -> Series:
        """The series of its rows."""
        return self.table.series_of(self.headers)


def select(results: Iterable[Result], topic: str, watched: Collection[Series]) -> list[Record]:
    """Return the records of watched series that may have rows; one that is malformed is left to the table's query."""
    table, found = TABLES[topic], []
    for each in results:
        try:
            headers = PageHeaders.parse(each.headers)
            table.check(headers)
        except InvalidRequest:
            continue
        if headers.kind is table.kind and table.series_of(headers) in watched:
            found.append(Record(table, headers, each.payload))
    return found


def rows_of(record: Record, issued: Mapping[str, IssuedDispatch], *, now_ns: int) -> list[Row] | None:
    """Return the rows with which a record can fire triggers; None if it does not count.

    Args:
        issued: The relay's knowledge of the record's dispatch.
        now_ns: Time of this process.
    """
    headers = record.headers
    dispatch = issued.get(headers.dispatch_id)
    if dispatch is None or not dispatch.is_realtime or headers.amends:
        return None
    if refusal(headers.dispatch_id, record.series, headers.span, issued, is_page=True, now_ns=now_ns) is not None:
        return None
    try:
        decoded = record.table.decode(headers, record.payload)
    except InvalidRequest:
        return None  # the table's query keeps it as a dead letter
    return as_rows(decoded, ROW_COLUMNS[record.series.dataset])


def without_repeated(rows: Sequence[Row], recent: dict[str, int]) -> list[Row]:
    """Return trades that did not come before, and keep in ``recent`` the ids of those that may come again."""
    kept = []
    for row in rows:
        if row[1] not in recent:
            recent[row[1]] = row[0]
            kept.append(row)
    before_ns = max(recent.values(), default=0) - REPEATED_NS
    for trade_id in [name for name, time_ns in recent.items() if time_ns < before_ns]:
        del recent[trade_id]
    return kept


class Dispatches:
    """Issued dispatches, as the relay has described them; bounded."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._known: OrderedDict[str, IssuedDispatch | None] = OrderedDict()

    def unknown(self, records: Iterable[Record]) -> set[str]:
        """Return the ids of dispatches of which the relay was not asked yet."""
        return {each.headers.dispatch_id for each in records} - self._known.keys()

    def learn(self, asked: Iterable[str], found: Mapping[str, IssuedDispatch]) -> None:
        """Keep the relay's answer. Ids that it does not know are kept too: an id is issued before it is used."""
        for each in asked:
            self._known[each] = found.get(each)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def issued(self, dispatch_id: str) -> dict[str, IssuedDispatch]:
        """Return the known facts of a dispatch, by its id."""
        found = self._known.get(dispatch_id)
        return {dispatch_id: found} if found else {}
