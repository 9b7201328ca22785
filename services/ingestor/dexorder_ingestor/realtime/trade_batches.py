"""Records of trades and the span of time that each of them settles. Pure.

A record holds the trades until the next tick, at most ``MAX_BATCH_TRADES``. Its span starts where
the one before it ended, and ends at the settled time, or before the first trade that is left for the next record. A
quiet market is settled by a record without trades once in a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade

MAX_BATCH_NS = SECOND_NS // 10
"""Time between two ticks of a process with up to `_MARKETS` markets."""
_LONGEST_BATCH_NS = SECOND_NS
_MARKETS = 100
"""Each record costs the process, and the table's driver, a fixed time; so with more markets they are as many a second,
and hold more trades each."""
MAX_BATCH_TRADES = 5_000
"""About 300 kB. An overloaded process takes seconds for a call of the gateway, so a backlog needs large records."""
HEARTBEAT_NS = 60 * SECOND_NS
NEVER_NS = 2**63


def tick_of(markets: int) -> int:
    """Return the time between two ticks of a process that follows this many markets."""
    return min(MAX_BATCH_NS * -(-max(1, markets) // _MARKETS), _LONGEST_BATCH_NS)


class TradeBatch(NamedTuple):
    """Trades of a record, and the span that it settles; trades before the span have come late."""

    span: TimeRange
    trades: tuple[Trade, ...]


class TradeBatches:
    """Splits released trades into records. ``now_ns`` is of the monotonic clock."""

    def __init__(self, start_ns: int, *, silent_ns: int = 0, now_ns: int) -> None:
        """Start the first span at ``start_ns``, ``silent_ns`` after the last record before it."""
        self.tick_ns = MAX_BATCH_NS
        """Time between two ticks, as `tick_of` has it for the process."""
        self.end_ns = start_ns
        """End of the last span."""
        self._trades: list[Trade] = []
        self.lowest: int | None = None
        """Lowest number of the trades that are in no record yet."""
        self._first_ns = 0
        self._last_settled_ns = now_ns - min(max(0, silent_ns), HEARTBEAT_NS)

    def __len__(self) -> int:
        """Return the number of trades that are in no record yet."""
        return len(self._trades)

    @property
    def oldest_ns(self) -> int | None:
        """Time of the oldest of them; None without any."""
        return min((trade.time_ns for trade in self._trades), default=None)

    def add(self, trades: Sequence[Trade], *, now_ns: int) -> None:
        """Add released trades."""
        if trades and not self._trades:
            self._first_ns = now_ns
        self._trades += trades
        self.lowest = lower(self.lowest, lowest_number(trades))

    def skip(self, end_ns: int) -> None:
        """Let the next span start at ``end_ns``, because the trades before it are lost."""
        self.end_ns = max(self.end_ns, end_ns)

    def due_ns(self, settled_ns: int) -> int:
        """Return the time of the next record, unless trades come; far away while all trades are recorded."""
        if len(self._trades) >= MAX_BATCH_TRADES:
            return self._first_ns
        if self._trades:
            return self._tick_ns()
        return self._last_settled_ns + HEARTBEAT_NS if settled_ns > self.end_ns else NEVER_NS

    def take(self, settled_ns: int, *, now_ns: int, flush: bool = False) -> list[TradeBatch]:
        """Return the records that are due; all that there is to record, if ``flush``.

        Args:
            settled_ns: All trades before it have been added.
        """
        full, rest = divmod(len(self._trades), MAX_BATCH_TRADES)
        is_rest_due = flush or now_ns >= self._tick_ns()
        count = full + (1 if rest and is_rest_due else 0)
        found = self._next(count, settled_ns)
        is_quiet_due = not found and now_ns >= self.due_ns(settled_ns)
        if settled_ns > self.end_ns and not self._trades and (flush or is_quiet_due):
            found.append(TradeBatch(self._next_span(settled_ns), ()))
        if found:
            self._first_ns = now_ns
        if any(batch.span.start_ns < batch.span.end_ns for batch in found):  # a late trade settles no time
            self._last_settled_ns = now_ns
        return found

    def _tick_ns(self) -> int:
        """Return the next tick after the first trade; all markets have the same ones, so that records can be joined."""
        return (self._first_ns // self.tick_ns + 1) * self.tick_ns

    def _next(self, count: int, settled_ns: int) -> list[TradeBatch]:
        """Return the next records. Its time grows with the trades, not with their square, however many wait."""
        taken, self._trades = self._trades[: count * MAX_BATCH_TRADES], self._trades[count * MAX_BATCH_TRADES :]
        parts = [tuple(taken[i : i + MAX_BATCH_TRADES]) for i in range(0, len(taken), MAX_BATCH_TRADES)]
        ends_ns = [min((trade.time_ns for trade in self._trades), default=settled_ns)]
        for part in reversed(parts[1:]):
            ends_ns.append(min(ends_ns[-1], min(trade.time_ns for trade in part)))
        self.lowest = lowest_number(self._trades)
        return [
            TradeBatch(self._next_span(min(settled_ns, end_ns)), part)
            for part, end_ns in zip(parts, reversed(ends_ns), strict=False)
        ]

    def _next_span(self, end_ns: int) -> TimeRange:
        span = TimeRange(self.end_ns, max(self.end_ns, end_ns))
        self.end_ns = span.end_ns
        return span


def lowest_number(trades: Iterable[Trade]) -> int | None:
    """Return the lowest number of trades; None without any."""
    return min((trade.number for trade in trades), default=None)


def lowest_after(batches: Sequence[TradeBatch]) -> list[int | None]:
    """Return for each record the lowest number of the trades in the records after it; None without any."""
    found: list[int | None] = [None]
    for batch in reversed(batches[1:]):
        found.append(lower(found[-1], lowest_number(batch.trades)))
    return found[::-1]


def lower(one: int | None, other: int | None) -> int | None:
    """Return the lower one of two numbers, either of which may be missing."""
    return min((each for each in (one, other) if each is not None), default=None)
