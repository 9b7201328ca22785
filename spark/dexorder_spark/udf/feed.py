"""Rules that turn rows of candles or trades into the input of a UDF: each point once, in the order of time. Pure.

A group is a ticker and, for candles, a period. Within a group a point that comes after a later one is not fed, and
neither is a copy of one that was: so a candle that is fetched again, revised or amended is not fed twice. Trades may be
out of order by the tolerance of their table (1 s), because sockets and REST of an exchange round times differently.

A UDF that wants batches gets the points of each window as one batch, as soon as a point of a later window comes or the
series is settled to the end of the window. A function with timers gets the settled time itself, as a mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.udf import OHLC, TICKS, UdfInput
from dexorder_udf.points import Batch, Point, Value, group_id, mark
from dexorder_udf.session import Edge
from dexorder_udf.windows import OpenWindow, Windows

DATABASE = "trading"
MAX_WINDOW_POINTS = 500_000
"""Largest number of points in all open windows of a UDF; they are part of its state."""
_CANDLE_FIELDS = ("open", "high", "low", "close", "volume", "quote_volume", "trades")
_TRADE_FIELDS = ("price", "amount", "side", "trade_id")


@dataclass
class GroupState:
    """Points that a group was fed.

    Attributes:
        newest_ns: Latest time of a point.
        recent: Times of points by id, of those not older than twice the tolerance; empty without a tolerance.
    """

    newest_ns: int = -1
    recent: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """A series is complete before a time: the earlier records of the log have all its points."""

    ticker: str
    period_seconds: int
    time_ns: int


@dataclass
class FeedState:
    """State of a feed; it is kept with the UDF's own."""

    groups: dict[str, GroupState] = field(default_factory=dict)
    windows: dict[str, OpenWindow] = field(default_factory=dict)


class UdfFeed:
    """Feed of one UDF."""

    def __init__(
        self, given: UdfInput, edge: Edge, tolerance_ns: int, state: FeedState, *, has_timers: bool = False
    ) -> None:
        """Continue after ``state``, which is changed in place.

        Args:
            edge: The UDF's kind of input.
            has_timers: It wants marks of the settled time.

        Raises:
            InvalidRequest: The UDF wants batches and ``input.window`` is not set, or the reverse.
        """
        if edge is Edge.BATCH and not given.window_seconds:
            raise InvalidRequest("it wants batches, and input.window is not set; set it, for example to 1h")
        if edge is Edge.STREAM and given.window_seconds:
            raise InvalidRequest("it wants a stream of points, and input.window is set; remove it")
        self._given = given
        self._tolerance_ns = tolerance_ns
        self._has_timers = has_timers
        self._windows = Windows(given.window_seconds * SECOND_NS, state.windows) if given.window_seconds else None
        self.state = state
        self._late = 0

    @property
    def late(self) -> int:
        """Return the number of points that were left out because they came after later ones."""
        return self._late + (self._windows.late if self._windows is not None else 0)

    def wants(self, series: Series) -> bool:
        """Return whether the input has a series."""
        tickers, periods = self._given.tickers, self._given.periods
        return (not tickers or series.ticker in tickers) and (not periods or series.period_seconds in periods)

    def take(self, rows: Iterable[Mapping[str, Any] | Settled]) -> list[Point | Batch]:
        """Return what rows of the table, and settled times, in the order of the log, bring to the UDF.

        InvalidRequest if the open windows have too many points.
        """
        is_candle = self._given.table == OHLC
        found: list[Point | Batch] = []
        for row in rows:
            if isinstance(row, Settled):
                found += self._settle(row)
                continue
            point, row_id = (_candle(row), "") if is_candle else (_trade(row), row["trade_id"])
            if point.time_ns < (self._given.since_ns or 0):
                continue
            group = point.group
            if not self._is_new(group, point.time_ns, row_id):
                self._late += 1
            elif self._windows is not None:
                found += self._windows.add(group, point)
            else:
                found.append(point)
        held = self._windows.held if self._windows is not None else 0
        if held > MAX_WINDOW_POINTS:
            raise InvalidRequest(
                f"its open windows have {held} points, at most {MAX_WINDOW_POINTS} are allowed; use a shorter"
                " input.window or fewer input.tickers"
            )
        return found

    def _is_new(self, group: str, time_ns: int, row_id: str) -> bool:
        seen = self.state.groups.setdefault(group, GroupState())
        if not self._tolerance_ns:
            if time_ns <= seen.newest_ns:
                return False
            seen.newest_ns = time_ns
            return True
        if row_id in seen.recent or time_ns < seen.newest_ns - self._tolerance_ns:
            return False
        seen.recent[row_id] = time_ns
        if time_ns > seen.newest_ns:
            seen.newest_ns = time_ns
        if len(seen.recent) > 64 and len(seen.recent) % 64 == 0:
            oldest_ns = seen.newest_ns - 2 * self._tolerance_ns
            seen.recent = {each: at_ns for each, at_ns in seen.recent.items() if at_ns >= oldest_ns}
        return True

    def _settle(self, settled: Settled) -> list[Point | Batch]:
        if self._windows is None and not self._has_timers:
            return []
        tags = _tags(settled.ticker, settled.period_seconds)
        group = group_id("", tuple(tags), tags)
        if self._windows is not None:
            return [*self._windows.settle(group, settled.time_ns)]
        seen = self.state.groups.get(group)
        if seen is None or settled.time_ns <= seen.newest_ns + 1:
            return []
        seen.newest_ns = settled.time_ns - 1  # a point of before is late, as after a later point
        return [mark(settled.time_ns, tags)]


def _candle(row: Mapping[str, Any]) -> Point:
    return _point(row["open_time"], _tags(row["ticker"], row["period_seconds"]), row, _CANDLE_FIELDS, OHLC)


def _trade(row: Mapping[str, Any]) -> Point:
    return _point(row["time"], _tags(row["ticker"], 0), row, _TRADE_FIELDS, TICKS)


def _tags(ticker: str, period_seconds: int) -> dict[str, str]:
    return {"ticker": ticker, "period": PERIODS[period_seconds]} if period_seconds else {"ticker": ticker}


def _point(time_us: int, tags: dict[str, str], row: Mapping[str, Any], names: Sequence[str], table: str) -> Point:
    fields: dict[str, Value] = {name: row[name] for name in names if row[name] is not None}
    return Point(time_us * 1_000, tags, fields, table, tuple(tags), database=DATABASE)
